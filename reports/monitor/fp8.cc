// What FP8 recipes would do to the operands of products.
#include <fmt/format.h>

#include <algorithm>

#include "reports/monitor/monitor_page.h"
#include "reports/writers/cells.h"

namespace lockstep {
namespace {

constexpr size_t kWorstTensors = 12;
constexpr double kShown = 1e-4;  // smaller shares are left out

Blocks write_fp8(const MonitorReport& report) {
  if (report.fp8.empty()) return {};
  std::vector<const Fp8Site*> worst;
  for (const Fp8Site& one : report.fp8) {
    if (std::max(one.zeroed, one.saturated) >= kShown) worst.push_back(&one);
  }
  if (worst.empty()) {
    return {paragraph(fmt::format("Of {} tensors none would lose {} of its values.",
                                  report.fp8.size(), percent_cell(kShown).text))};
  }
  std::ranges::stable_sort(worst, std::greater(), [](const Fp8Site* one) {
    return std::max(one->zeroed, one->saturated);
  });
  const size_t all = worst.size();
  if (all > kWorstTensors) worst.resize(kWorstTensors);
  TableBlock out;
  out.columns = {{"place", Align::kLeft}, {"format", Align::kLeft}, {"to zero"}, {"saturated"}};
  for (const Fp8Site* one : worst) {
    out.rows.push_back({place_name(report.site(one->site)), one->format, percent_cell(one->zeroed),
                        percent_cell(one->saturated)});
  }
  out.notes = {
      "To zero: of the nonzero values, with one scale for the tensor, from the step's own largest "
      "value (current scaling). Scales by row or by block fit better; a histogram of the tensor "
      "does not tell how much.",
      "Saturated: at least, if the scale came from up to 16 measured steps before (delayed scaling "
      "takes it from the steps just before, which with `every` above 1 are others)."};
  if (all > worst.size()) out.notes.push_back(fmt::format("... and {} more.", all - worst.size()));
  return {table(std::move(out))};
}

}  // namespace

MonitorSection fp8_monitor_section() {
  return {"fp8", "What FP8 would do", write_fp8};
}

}  // namespace lockstep

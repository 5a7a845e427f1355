// Updates next to their weights.
#include <fmt/format.h>

#include <algorithm>

#include "reports/monitor/monitor_page.h"
#include "reports/writers/cells.h"

namespace lockstep {
namespace {

constexpr size_t kWorstUpdates = 20;

Blocks write_updates(const MonitorReport& report) {
  if (report.updates.empty()) return {};
  std::vector<const LiveUpdate*> worst;
  for (const LiveUpdate& one : report.updates) worst.push_back(&one);
  std::ranges::stable_sort(worst, std::greater(), &LiveUpdate::last_stagnant_bf16);
  const size_t all = worst.size();
  if (all > kWorstUpdates) worst.resize(kWorstUpdates);
  TableBlock out;
  out.columns = {{"weight", Align::kLeft},
                 {"format", Align::kLeft, true},
                 {"update/weight"},
                 {"stagnant, first"},
                 {"last"},
                 {"in BF16"}};
  for (const LiveUpdate* one : worst) {
    out.rows.push_back({tensor_name(report.site(one->site)),
                        report.formats[static_cast<size_t>(one->site)], number_cell(one->relative),
                        percent_cell(one->first_stagnant), percent_cell(one->last_stagnant),
                        percent_cell(one->last_stagnant_bf16)});
  }
  out.notes = {
      "Update/weight: norms, in the last measured step. Stagnant: weights with a gradient "
      "that kept their value, in the first and the last measured step. In BF16: that BF16 "
      "weights would keep."};
  if (all > worst.size()) out.notes.push_back(fmt::format("... and {} more.", all - worst.size()));
  return {table(std::move(out))};
}

}  // namespace

MonitorSection updates_monitor_section() {
  return {"updates", "Updates", write_updates};
}

}  // namespace lockstep

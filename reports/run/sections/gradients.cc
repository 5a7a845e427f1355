// A replayed capture: the gradients that the optimizers took, compared with the captured run's.
#include <fmt/format.h>

#include <cmath>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

// "conv1.weight: 1.02 times"
std::string furthest_text(const NormComparison& norms) {
  if (norms.furthest.empty()) return "-";
  if (!std::isfinite(norms.furthest_ratio)) return norms.furthest + ": not finite";
  return fmt::format("{}: {:.6f} times", norms.furthest, norms.furthest_ratio);
}

// Under "step 12": a norm that is not finite, or "stopped".
Cell norm_cell(const LaneReport& lane, const NormComparison& norms) {
  const bool has_stopped = lane.info.died_at >= 0 && norms.step >= lane.info.died_at;
  if (has_stopped) return "stopped";
  return std::isfinite(norms.lane) ? number_cell(norms.lane) : Cell("not finite");
}

const NormComparison* recorded(const LaneReport& lane) {
  if (!lane.beside_captured || lane.beside_captured->first.step < 0) return nullptr;
  return &lane.beside_captured->first;
}

Blocks write_gradients(const Report& report) {
  const NormComparison* any = nullptr;
  for (const LaneReport& lane : report.lanes) any = any == nullptr ? recorded(lane) : any;
  if (any == nullptr) return {};
  const CapturedComparison& captured = *report.reference().beside_captured;
  TableBlock table;
  table.columns = {{"lane", Align::kLeft},
                   {fmt::format("step {}", captured.first.step)},
                   {fmt::format("step {}", captured.last.step)},
                   {fmt::format("furthest in step {}", captured.first.step), Align::kLeft}};
  table.rows.push_back({std::string(kCapturedLane), number_cell(captured.first.captured),
                        number_cell(captured.last.captured), ""});
  for (const LaneReport& lane : report.lanes) {
    const NormComparison* first = recorded(lane);
    if (first == nullptr || lane.is_twin()) continue;
    table.rows.push_back({lane.info.name, norm_cell(lane, *first),
                          norm_cell(lane, lane.beside_captured->last), furthest_text(*first)});
  }
  table.notes = {fmt::format(
      "Norm of all gradients as the optimizer takes them: unscaled, clipped. furthest: "
      "the parameter whose norm differs from the captured one by the largest factor, among those "
      "with at least {} of the largest norm. In free mode weights drift apart, so later steps say "
      "less about rounding.",
      percent(kSmallNorm))};
  return {table};
}

}  // namespace

Section gradients_section() {
  return {.name = "gradients",
          .title = "Gradients compared with the captured ones",
          .write = write_gradients};
}

}  // namespace lockstep

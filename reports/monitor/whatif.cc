// What FP16 would lose, without the chip: loss scales that fit each layer.
#include <fmt/format.h>

#include "reports/monitor/monitor_page.h"
#include "reports/words/range_text.h"

namespace lockstep {
namespace {

Blocks write_whatif(const MonitorReport& report) {
  const RangeTable& ranges = report.ranges.front();
  if (ranges.layers.empty()) return {};
  Blocks blocks = {paragraph(
      fmt::format("The exponent histograms of {} measured steps, shifted by a loss scale.",
                  report.measured.size()))};
  blocks.push_back(table(range_table(ranges)));
  return blocks;
}

}  // namespace

MonitorSection whatif_monitor_section() {
  return {"whatif", "What FP16 would do", write_whatif};
}

}  // namespace lockstep

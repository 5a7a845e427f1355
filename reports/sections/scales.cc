// The loss scales that fit each layer, from the reference's gradients.
#include <fmt/format.h>

#include <cmath>

#include "reports/number_text.h"
#include "reports/range_text.h"
#include "reports/section.h"

namespace lockstep {
namespace {

// Where a lane's scale began and ended.
std::vector<IntervalMark> marks_of(const Report& report, const std::string& format) {
  std::vector<IntervalMark> marks;
  for (const LaneReport& lane : report.lanes) {
    const bool holds = std::ranges::count(lane.info.site_formats, format) > 0;
    if (!holds || !lane.has_scaler || lane.scalers.empty()) continue;
    const std::vector<double>& scales = lane.scalers[0].scales;
    if (scales.empty()) continue;
    marks.push_back({lane.info.name + ", start", std::log2(scales.front())});
    if (scales.back() != scales.front()) {
      marks.push_back({lane.info.name + ", end", std::log2(scales.back())});
    }
  }
  return marks;
}

Block chart_of(const Report& report, const RangeTable& ranges) {
  Intervals out{.x_title = "loss scale 2^k", .rows = {}, .low = 0, .high = 0, .marks = {}};
  for (const LayerRange& layer : ranges.layers) {
    if (!layer.has_gradients) continue;
    out.rows.push_back({.name = layer.layer.empty() ? "-" : layer.layer,
                        .low = static_cast<double>(layer.scales.lo),
                        .high = static_cast<double>(layer.scales.hi),
                        .low_text = layer.lo_site,
                        .high_text = layer.hi_site});
  }
  out.low = ranges.scales.lo;
  out.high = ranges.scales.hi;
  out.marks = marks_of(report, ranges.format->name);
  return chart(fmt::format("Loss scales that fit {}, by layer", ranges.format->name),
               std::move(out), range_table(ranges));
}

Blocks write_scales(const Report& report) {
  Blocks out;
  for (const RangeTable& ranges : report.ranges) {
    out.push_back(chart_of(report, ranges));
    for (Block& block : range_conclusions(ranges)) out.push_back(std::move(block));
  }
  return out;
}

}  // namespace

Section scales_section() {
  return {.name = "scales",
          .title = "Which loss scales fit",
          .in_summary = false,
          .write = write_scales,
          .only_html = true};
}

}  // namespace lockstep

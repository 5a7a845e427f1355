// The loss scales that fit each layer, from the reference's gradients.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/run/section.h"
#include "reports/words/range_text.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

// Where a lane's scale began and ended; of each scaler.
std::vector<IntervalMark> marks_of(const Report& report, const std::string& format) {
  std::vector<IntervalMark> marks;
  for (const LaneReport& lane : report.lanes) {
    const bool holds = std::ranges::count(lane.info.site_formats, format) > 0;
    if (!holds || !lane.has_scaler) continue;
    for (const ScalerReport& scaler : lane.scalers) {
      if (scaler.scales.empty()) continue;
      const double first = scaler.scales.front(), last = scaler.scales.back();
      const std::string name =
          lane.info.name + (scaler.loss.empty() ? "" : ", loss " + scaler.loss);
      marks.push_back({name + ", start", std::log2(first)});
      if (first != last) marks.push_back({name + ", end", std::log2(last)});
    }
  }
  return marks;
}

Block chart_of(const Report& report, const RangeTable& ranges) {
  Intervals out;
  out.x_title = "loss scale 2^k";
  size_t in_format = 0;
  for (const LayerRange& layer : ranges.layers) {
    if (!layer.has_gradients) continue;
    const bool stays = !layer.reason.empty();
    in_format += !stays;
    out.rows.push_back(
        {.name = (layer.layer.empty() ? "-" : layer.layer) + (stays ? " (fp32)" : ""),
         .low = static_cast<double>(layer.scales.lo),
         .high = static_cast<double>(layer.scales.hi),
         .low_text = layer.lo_site,
         .high_text = layer.hi_site});
  }
  if (in_format > 0) {
    out.low = ranges.scales.lo;
    out.high = ranges.scales.hi;
  } else {
    out.low = 1;  // none
  }
  out.common_name =
      fmt::format("common to {} in {}", counted(in_format, "layer"), ranges.format->name);
  out.marks = marks_of(report, ranges.format->name);
  return chart(fmt::format("Loss scales that fit {}, by layer", ranges.format->name),
               std::move(out), range_table(ranges));
}

// Every scale fits every layer: a chart would show nothing.
bool needs_no_scale(const RangeTable& ranges) {
  return std::ranges::all_of(ranges.layers, [](const LayerRange& layer) {
    return layer.reason.empty() && layer.scales.lo <= kMinScaleExponent &&
           layer.scales.hi >= kMaxScaleExponent;
  });
}

Blocks write_scales(const Report& report) {
  Blocks out;
  for (const RangeTable& ranges : report.ranges) {
    if (needs_no_scale(ranges)) {
      out.push_back(paragraph(loss_scale_sentence(ranges)));
      continue;
    }
    for (Block& block : range_conclusions(ranges)) out.push_back(std::move(block));
    out.push_back(chart_of(report, ranges));
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

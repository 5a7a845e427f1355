// One row per layer: feasible loss scales, margin of unscaled values, and the verdict.
#include "reports/words/range_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"
#include "reports/writers/text_writer.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

std::string scales_text(const LayerRange& layer) {
  if (!layer.has_gradients) return "-";
  if (layer.scales.empty()) return "none";
  const bool open_below = layer.scales.lo <= kMinScaleExponent;
  const bool open_above = layer.scales.hi >= kMaxScaleExponent;
  if (open_below && open_above) return "any";
  const std::string lo = open_below ? "" : fmt::format("2^{} ", layer.scales.lo);
  const std::string hi = open_above ? "" : fmt::format(" 2^{}", layer.scales.hi);
  return lo + ".." + hi;
}

Cell margin_cell(const LayerRange& layer) {
  if (!layer.unscaled_margin) return "-";
  const int octaves = *layer.unscaled_margin;
  return {fmt::format("{} octaves", octaves), static_cast<double>(octaves)};
}

bool keeps_all(const RangeTable& ranges) {
  return std::ranges::none_of(ranges.layers,
                              [](const LayerRange& layer) { return layer.reason.empty(); });
}

std::string name_of(const RangeTable& ranges, const LayerRange& layer) {
  if (layer.layer.empty()) return "-";
  return ranges.counts(layer) ? layer.layer : layer.layer + " (function)";
}

}  // namespace

std::string kept_layers_sentence(const RangeTable& ranges) {
  std::vector<std::string> kept, functions;
  size_t all = 0;
  for (const LayerRange& layer : ranges.layers) {
    const bool counts = ranges.counts(layer);
    all += counts ? 1 : 0;
    if (!layer.reason.empty()) (counts ? kept : functions).push_back(layer.layer);
  }
  const std::string& format = ranges.format->name;
  const std::string layers = counted(all, "layer");
  const std::string outside =
      functions.empty()
          ? ""
          : fmt::format(" Outside of all modules, keep in fp32, too: {}.", few_names(functions));
  if (kept.size() == all)
    return fmt::format("None of {} fits {} under autocast, by their range.", layers, format);
  if (kept.empty() && functions.empty())
    return fmt::format("All {} may use {} under autocast, by their range.", layers, format);
  if (kept.empty()) {
    return fmt::format(
        "All {} may use {} under autocast, by their range. Outside of all modules, keep in fp32: "
        "{}.",
        layers, format, few_names(functions));
  }
  return fmt::format(
      "Keep {} of {} in fp32 under autocast, by their range: {}. The other {} may use {}.{}",
      kept.size(), layers, few_names(kept), all - kept.size(), format, outside);
}

std::string loss_scale_sentence(const RangeTable& ranges) {
  if (keeps_all(ranges) || !ranges.has_gradients()) return "";
  const std::string& format = ranges.format->name;
  const bool open_below = ranges.scales.lo <= kMinScaleExponent;
  const bool open_above = ranges.scales.hi >= kMaxScaleExponent;
  if (open_below && open_above) return fmt::format("{} needs no loss scale.", format);
  const std::string from =
      open_below ? "" : fmt::format("2^{} ({}) ", ranges.scales.lo, ranges.lo_layer);
  const std::string to =
      open_above ? "and more" : fmt::format("to 2^{} ({})", ranges.scales.hi, ranges.hi_layer);
  return fmt::format(
      "Set a static loss scale of 2^{} for {}, or let a dynamic one find its own: {}{}{} fit, with "
      "{} octave to spare.",
      ranges.scale_exponent, format, open_below ? "all scales up " : "", from, to,
      kHeadroomOctaves);
}

TableBlock range_table(const RangeTable& ranges) {
  TableBlock table;
  table.name = ranges.format->name;
  table.columns = {{"layer", Align::kLeft},
                   {"loss scales"},
                   {"lost at 1"},
                   {fmt::format("lost at 2^{}", ranges.scale_exponent)},
                   {"values"},
                   {"margin"},
                   {"verdict", Align::kLeft}};
  std::vector<std::string> functions;
  for (const LayerRange& layer : ranges.layers) {
    if (!ranges.counts(layer) && layer.reason.empty()) {
      functions.push_back(layer.layer);
      continue;
    }
    table.rows.push_back(
        {name_of(ranges, layer), scales_text(layer),
         layer.has_gradients ? percent_cell(layer.unscaled_gradient_lost) : Cell("-"),
         layer.has_gradients ? percent_cell(layer.lost_energy) : Cell("-"),
         layer.has_gradients ? percent_cell(layer.zeroed_share) : Cell("-"), margin_cell(layer),
         layer.reason.empty() ? ranges.format->name : "fp32"});
  }
  table.notes = {fmt::format(
      "loss scales: those at which every gradient of the layer fits {} with {} octave of headroom "
      "and loses at most {} of its energy (sum of squares) to zero. lost at 1: the largest such "
      "share "
      "of a gradient tensor without a loss scale. values: the share of its nonzero values, however "
      "small, that become zero at 2^{}. margin: octaves between the largest input, weight or "
      "activation and the format's largest binade.",
      ranges.format->name, kHeadroomOctaves, percent(kEnergyLimit), ranges.scale_exponent)};
  if (!functions.empty()) {
    table.notes.push_back(fmt::format(
        "Not listed, since they fit: functions outside of modules ({}).", few_names(functions)));
  }
  if (!ranges.ignored.empty()) {
    table.notes.push_back(
        fmt::format("Ignored as rounding noise (largest value below 2^-{} of the layer's largest "
                    "gradient): {}.",
                    kNoiseOctaves, join(ranges.ignored, ", ")));
  }
  return table;
}

Blocks range_conclusions(const RangeTable& ranges) {
  std::string text = kept_layers_sentence(ranges);
  const std::string scale = loss_scale_sentence(ranges);
  if (!scale.empty()) text += " " + scale;
  Blocks blocks = {paragraph(std::move(text))};
  for (const LayerRange& layer : ranges.layers) {
    if (layer.reason.empty()) continue;
    blocks.push_back(
        paragraph(fmt::format("{} stays in fp32: {}.", name_of(ranges, layer), layer.reason)));
  }
  return blocks;
}

std::string range_text(const RangeTable& ranges) {
  return heading_text(fmt::format("Ranges for {}, from the fp32 lane", ranges.format->name)) +
         to_text({range_table(ranges)}) + to_text(range_conclusions(ranges));
}

}  // namespace lockstep

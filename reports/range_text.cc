// One row per layer: feasible loss scales, margin of unscaled values, and the verdict.
#include "reports/range_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/number_text.h"
#include "reports/text_writer.h"
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

// "Keep fc1, fc2 in fp32; the other 3 layers fit fp16."
std::string layers_text(const RangeTable& table) {
  std::vector<std::string> kept;
  for (const LayerRange& layer : table.layers) {
    if (!layer.reason.empty()) kept.push_back(layer.layer.empty() ? "(no layer)" : layer.layer);
  }
  const std::string& format = table.format->name;
  if (kept.empty()) return fmt::format("Every layer fits {}.", format);
  if (kept.size() == table.layers.size()) return fmt::format("No layer fits {}.", format);
  const std::string others = counted(table.layers.size() - kept.size(), "layer");
  return fmt::format("Keep {} in fp32; the other {} may use {}.", join(kept, ", "), others, format);
}

// "For these, loss scales from 2^-16 (conv1) to 2^14 (fc3) fit; a static one: 2^12."
std::string scales_text(const RangeTable& table) {
  const bool open_below = table.scales.lo <= kMinScaleExponent;
  const bool open_above = table.scales.hi >= kMaxScaleExponent;
  if (open_below && open_above) return "They need no loss scale.";
  const std::string from =
      open_below ? "" : fmt::format(" from 2^{} ({})", table.scales.lo, table.lo_layer);
  const std::string to =
      open_above ? "" : fmt::format(" up to 2^{} ({})", table.scales.hi, table.hi_layer);
  return fmt::format(
      "Loss scales{}{} fit, with {} octave to spare. A static scale: 2^{}; a dynamic one finds its "
      "own.",
      from, to, kHeadroomOctaves, table.scale_exponent);
}

Block conclusion(const RangeTable& table) {
  const bool none = std::ranges::none_of(
      table.layers, [](const LayerRange& layer) { return layer.reason.empty(); });
  return paragraph(layers_text(table) + (none ? "" : " " + scales_text(table)));
}

}  // namespace

TableBlock range_table(const RangeTable& ranges) {
  TableBlock table;
  table.columns = {{"layer", Align::kLeft},
                   {"loss scales"},
                   {"lost at 1"},
                   {fmt::format("lost at 2^{}", ranges.scale_exponent)},
                   {"values"},
                   {"margin"},
                   {"verdict", Align::kLeft}};
  for (const LayerRange& layer : ranges.layers) {
    table.rows.push_back(
        {layer.layer.empty() ? "-" : layer.layer, scales_text(layer),
         layer.has_gradients ? percent(layer.unscaled_gradient_lost) : "-",
         layer.has_gradients ? percent(layer.lost_energy) : "-",
         layer.has_gradients ? percent(layer.zeroed_share) : "-",
         layer.unscaled_margin ? fmt::format("{} octaves", *layer.unscaled_margin) : "-",
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
  if (!ranges.ignored.empty()) {
    table.notes.push_back(
        fmt::format("Ignored as rounding noise (largest value below 2^-{} of the layer's largest "
                    "gradient): {}.",
                    kNoiseOctaves, join(ranges.ignored, ", ")));
  }
  return table;
}

Blocks range_conclusions(const RangeTable& ranges) {
  Blocks blocks = {conclusion(ranges)};
  for (const LayerRange& layer : ranges.layers) {
    if (layer.reason.empty()) continue;
    blocks.push_back(paragraph(fmt::format("{} stays in fp32: {}.", layer.layer, layer.reason)));
  }
  return blocks;
}

std::string range_text(const RangeTable& ranges) {
  return heading_text(fmt::format("Ranges for {}, from the fp32 lane", ranges.format->name)) +
         to_text({range_table(ranges)}) + to_text(range_conclusions(ranges));
}

}  // namespace lockstep

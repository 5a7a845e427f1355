// See range_json.h.
#include "reports/run/range_json.h"

namespace lockstep {
namespace {

// An end that nothing sets is null.
OrNull<int> exponent(int k) {
  const bool is_open = k <= kMinScaleExponent || k >= kMaxScaleExponent;
  return {is_open ? std::nullopt : std::optional<int>(k)};
}

}  // namespace

const JsonObject<LayerRange>& json_object(const LayerRange*) {
  static const JsonObject<LayerRange> keys(
      "", {
              {"layer", &LayerRange::layer},
              {"lo_exponent",
               only_if(&LayerRange::has_gradients, [](auto& l) { return exponent(l.scales.lo); }),
               "of this layer alone; absent, as the next three: it has no gradients"},
              {"hi_exponent",
               only_if(&LayerRange::has_gradients, [](auto& l) { return exponent(l.scales.hi); })},
              {"zeroed_share", only_if(&LayerRange::has_gradients, &LayerRange::zeroed_share),
               "of a gradient's nonzero values that become zero at the chosen scale, the largest"},
              {"lost_energy", only_if(&LayerRange::has_gradients, &LayerRange::lost_energy),
               "of its sum of squares"},
              {"margin_octaves", &LayerRange::unscaled_margin,
               "between the largest input, weight or activation and the format's largest binade; "
               "absent: none was measured"},
              {"reason", filled(&LayerRange::reason),
               "why the layer must stay in FP32; absent: it need not"},
          });
  return keys;
}

const JsonObject<RangeTable>& json_object(const RangeTable*) {
  static const JsonObject<RangeTable> keys(
      "", {
              {"lo_exponent", [](auto& r) { return exponent(r.scales.lo); },
               "the lowest scale 2^k that suits all layers that are not kept; `null`: nothing sets "
               "this end"},
              {"hi_exponent", [](auto& r) { return exponent(r.scales.hi); },
               "the highest one, with headroom"},
              {"lo_layer", &RangeTable::lo_layer, "that sets the lower end"},
              {"hi_layer", &RangeTable::hi_layer, "that sets the upper end"},
              {"headroom_octaves", [](auto&) { return kHeadroomOctaves; },
               "kept below the format's largest number"},
              {"chosen_exponent", &RangeTable::scale_exponent, "of the static scale to set"},
              {"layers", filled(&RangeTable::layers), "in the order of the network"},
          });
  return keys;
}

}  // namespace lockstep

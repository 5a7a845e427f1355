// docs/advice-json.md and docs/report-json.md list the keys.
#include "reports/run/range_json.h"

#include <nlohmann/json.hpp>

#include "reports/writers/json_text.h"

namespace lockstep {

using nlohmann::ordered_json;

namespace {

// An end that nothing sets is null.
ordered_json exponent(int k) {
  const bool is_open = k <= kMinScaleExponent || k >= kMaxScaleExponent;
  return is_open ? ordered_json(nullptr) : ordered_json(k);
}

}  // namespace

ordered_json range_object(const RangeTable& ranges) {
  ordered_json json = {{"lo_exponent", exponent(ranges.scales.lo)},
                       {"hi_exponent", exponent(ranges.scales.hi)},
                       {"lo_layer", ranges.lo_layer},
                       {"hi_layer", ranges.hi_layer},
                       {"headroom_octaves", kHeadroomOctaves},
                       {"chosen_exponent", ranges.scale_exponent}};
  for (const LayerRange& layer : ranges.layers) {
    ordered_json one = {{"layer", layer.layer}};
    if (layer.has_gradients) {
      one["lo_exponent"] = exponent(layer.scales.lo);
      one["hi_exponent"] = exponent(layer.scales.hi);
      one["zeroed_share"] = json_number(layer.zeroed_share);
      one["lost_energy"] = json_number(layer.lost_energy);
    }
    if (layer.unscaled_margin) one["margin_octaves"] = *layer.unscaled_margin;
    if (!layer.reason.empty()) one["reason"] = layer.reason;
    json["layers"].push_back(one);
  }
  return json;
}

}  // namespace lockstep

// The range table turned into a policy file with its evidence.
#include "analysis/recommend.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "analysis/range_samples.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

// The preset that a recommendation for a format starts from.
struct Base {
  std::string_view format, preset;
};
constexpr std::array kBases = {
    Base{"fp16", "torch-autocast-fp16"},
    Base{"bf16", "torch-autocast-bf16"},
};

const Base& base_of(const std::string& format) {
  std::vector<std::string> known;
  for (const Base& base : kBases) {
    if (base.format == format) return base;
    known.emplace_back(base.format);
  }
  throw InputError(
      fmt::format("--formats {}: this version recommends one format at a time", format),
      did_you_mean(format, known));
}

std::string interval_text(const ScaleInterval& interval) {
  if (interval.lo <= kMinScaleExponent) return fmt::format("at most 2^{}", interval.hi);
  return fmt::format("2^{} .. 2^{}", interval.lo, interval.hi);
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

Recommendation recommend(const RunFile& run, const std::string& format) {
  const Base& base = base_of(format);
  Recommendation out;
  out.base = find_policy(base.preset);
  out.ranges = make_range_table(range_samples(run, out.base), find_format(base.format));
  out.policy = policy_toml(out.base, out.ranges,
                           fmt::format("exponent histograms of the fp32 lane of {}, {} steps of {}",
                                       run.path(), run.steps(), run.options().model));
  return out;
}

std::string policy_toml(const Policy& base, const RangeTable& ranges, const std::string& evidence) {
  std::string out = fmt::format(
      "# Written by `lockstep recommend`. Evidence: {}.\n"
      "# Ranges only: every layer left in {} holds its values without overflow ({} octave of\n"
      "# headroom) and loses at most {:g} of its nonzero gradients. Run it to see the outcome.\n",
      evidence, ranges.format->name, kHeadroomOctaves, kLostShareLimit);
  out += fmt::format("name = {}\nversion = \"1\"\nextends = {}\n",
                     quoted("recommended-" + ranges.format->name), quoted(base.label()));
  out += fmt::format("help = {}\nsource = {}\n\n",
                     quoted(base.name + " with the range table's loss scale and exceptions"),
                     quoted("lockstep recommend"));
  if (ranges.scale_exponent != 0 || base.loss_scale.kind != "none") {
    out += fmt::format("# Feasible for all layers below: {}", interval_text(ranges.scales));
    if (!ranges.lo_layer.empty()) out += fmt::format("; {} needs the lower end", ranges.lo_layer);
    if (!ranges.hi_layer.empty()) out += fmt::format("; {} sets the upper end", ranges.hi_layer);
    out += fmt::format(".\n[loss_scale]\nkind = \"static\"\ninit_scale = {:.17g}\n",
                       std::ldexp(1.0, ranges.scale_exponent));
  }
  for (const LayerRange& layer : ranges.layers) {
    if (layer.reason.empty()) continue;
    out += fmt::format("\n# {}\n[[rule]]\nlayer = {}\ncompute = \"fp32\"\n", layer.reason,
                       quoted(layer.layer));
  }
  return out;
}

}  // namespace lockstep

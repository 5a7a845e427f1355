// Turns the range table into a policy file with its evidence.
#include "analysis/recommend/recommend.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "analysis/recommend/range_samples.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/policy/find_policy.h"
#include "src/policy/parse/toml_text.h"

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

// "# " before every line of at most kCommentWidth columns. A line end in `text`, from a file's
// name, would end the comment.
std::string comment(std::string_view text) {
  constexpr size_t kCommentWidth = 98;
  std::string out, line = "#";
  for (const std::string& word : split(printable(text), ' ')) {
    if (line.size() + 1 + word.size() > kCommentWidth && line.size() > 1) {
      out += line + "\n";
      line = "#";
    }
    line += " " + word;
  }
  return out + line + "\n";
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
  std::string out = comment(fmt::format(
      "Written by `lockstep recommend`. Evidence: {}. Ranges only: in that trace no value of the "
      "layers left in {} overflows ({} octave of headroom). At this loss scale, each "
      "gradient tensor loses at most a share of {:.3g} of its energy to zero (allowed: {:g}), and "
      "of "
      "its nonzero values at most {:.3g}. Run it to see the outcome.",
      evidence, ranges.format->name, kHeadroomOctaves, ranges.lost_energy(), kEnergyLimit,
      ranges.lost_values()));
  if (!ranges.ignored.empty()) {
    out +=
        comment(fmt::format("Ignored as rounding noise (largest value below 2^-{} of the layer's "
                            "largest gradient): {}.",
                            kNoiseOctaves, join(ranges.ignored, ", ")));
  }
  out += toml_text(
      toml::table{{"name", "recommended-" + ranges.format->name},
                  {"version", "1"},
                  {"extends", base.label()},
                  {"help", base.name + " with the range table's loss scale and exceptions"},
                  {"source", "lockstep recommend"}});
  out += '\n';
  if (ranges.scale_exponent != 0 || find_loss_scaler(base.loss_scale.kind).scales) {
    std::string why = "Feasible for all layers below: " + interval_text(ranges.scales);
    if (!ranges.lo_layer.empty()) why += fmt::format("; {} needs the lower end", ranges.lo_layer);
    if (!ranges.hi_layer.empty()) why += fmt::format("; {} sets the upper end", ranges.hi_layer);
    out += comment(why + ".");
    const toml::table loss_scale{{"kind", "static"},
                                 {"init_scale", std::ldexp(1.0, ranges.scale_exponent)}};
    out += toml_text(toml::table{{"loss_scale", loss_scale}});
  }
  for (const LayerRange& layer : ranges.layers) {
    if (layer.reason.empty()) continue;
    out += "\n" + comment(layer.reason);
    const toml::table rule{{"layer", layer.layer}, {"compute", "fp32"}};
    out += toml_text(toml::table{{"rule", toml::array{rule}}});
  }
  return out;
}

}  // namespace lockstep

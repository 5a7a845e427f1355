// See candidate.h.
#include "analysis/recommend/candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/policy/find_policy.h"
#include "src/policy/parse/toml_text.h"

namespace lockstep {
namespace {

struct Base {
  std::string_view format, preset;
};
constexpr std::array kBases = {
    Base{"fp16", "torch-autocast-fp16"},
    Base{"bf16", "torch-autocast-bf16"},
};

// "# " before every line of at most kCommentWidth columns. `text` may hold a file's name, in which
// a line end would end the comment.
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

std::string scale_table(const ScaleChoice& scale, const Policy& base) {
  if (!scale.scales || (scale.dynamic && scale.start == base.loss_scale.init_scale)) return "";
  toml::table numbers{{"init_scale", scale.start}};
  if (!scale.dynamic) numbers.insert("kind", "static");
  return toml_text(toml::table{{"loss_scale", numbers}});
}

}  // namespace

std::string interval_sentence(const RangeTable& ranges) {
  const auto [lo, hi] = ranges.scales;
  std::string text = "Feasible for all layers below: ";
  text += lo <= kMinScaleExponent ? fmt::format("at most 2^{}", hi)
                                  : fmt::format("2^{} .. 2^{}", lo, hi);
  if (!ranges.lo_layer.empty()) text += fmt::format("; {} needs the lower end", ranges.lo_layer);
  if (!ranges.hi_layer.empty()) text += fmt::format("; {} sets the upper end", ranges.hi_layer);
  return text + ".";
}

ScaleChoice static_scaler(const RangeTable& ranges) {
  return {true, false, std::ldexp(1.0, ranges.scale_exponent)};
}

ScaleChoice choose_scaler(const RangeTable& ranges, const Policy& base) {
  if (!find_loss_scaler(base.loss_scale.kind).scales) {
    return ranges.scale_exponent == 0 ? ScaleChoice{} : static_scaler(ranges);
  }
  const ScaleInterval& fits = ranges.scales;
  if (fits.hi - fits.lo < kDynamicOctaves) return static_scaler(ranges);
  const double least = std::ldexp(1.0, fits.lo), most = std::ldexp(1.0, fits.hi);
  return {true, true, std::clamp(base.loss_scale.init_scale, least, most)};
}

Policy autocast_policy(const std::string& format) {
  std::vector<std::string> known;
  for (const Base& base : kBases) {
    known.emplace_back(base.format);
    if (base.format != format) continue;
    return find_policy(base.preset);
  }
  throw InputError(fmt::format("--formats {}: no such format here", format),
                   did_you_mean(format, known));
}

Candidate plain_autocast(const std::string& format) {
  const Policy base = autocast_policy(format);
  const bool scales = find_loss_scaler(base.loss_scale.kind).scales;
  return {base.name, format, {}, {scales, scales, base.loss_scale.init_scale}, {}};
}

Candidate make_candidate(const std::string& name, const std::string& format,
                         std::vector<LayerInFp32> fp32, const ScaleChoice& scale,
                         const std::string& evidence, const std::string& about_scale) {
  const Policy base = autocast_policy(format);
  std::string toml = comment("Written by `lockstep recommend`. " + evidence);
  toml += toml_text(toml::table{{"name", name},
                                {"version", "1"},
                                {"extends", base.label()},
                                {"help", base.name + " with a fitting loss scale and exceptions"},
                                {"source", "lockstep recommend"}}) +
          "\n";
  const std::string scale_keys = scale_table(scale, base);
  if (!scale_keys.empty()) toml += comment(about_scale) + scale_keys;
  for (const LayerInFp32& layer : fp32) {
    if (layer.layer.find_first_of("*?") != std::string::npos) {
      throw InputError(fmt::format("layer '{}': a policy's rule cannot name it alone", layer.layer),
                       "* and ? in rules stand for other characters: rename the module");
    }
    const toml::table rule{{"layer", layer.layer}, {"compute", "fp32"}};
    toml += "\n" + comment(layer.reason) + toml_text(toml::table{{"rule", toml::array{rule}}});
  }
  return {name + ".toml", format, std::move(fp32), scale, std::move(toml)};
}

std::string policy_text(const Candidate& candidate) {
  if (!candidate.is_preset()) return candidate.toml;
  return make_candidate("recommended-" + candidate.format, candidate.format, {}, candidate.scale,
                        "Plain autocast trained as fp32 did.", "")
      .toml;
}

std::vector<LayerInFp32> layers_out_of_range(const RangeTable& ranges) {
  std::vector<LayerInFp32> layers;
  for (const LayerRange& layer : ranges.layers) {
    if (!layer.reason.empty()) layers.push_back({layer.layer, layer.reason});
  }
  return layers;
}

}  // namespace lockstep

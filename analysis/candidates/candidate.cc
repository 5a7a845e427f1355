// See candidate.h.
#include "analysis/candidates/candidate.h"

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

constexpr std::array kBases = {
    BaseFormat{"fp16", "torch-autocast-fp16"},
    BaseFormat{"bf16", "torch-autocast-bf16"},
    BaseFormat{"tf32", "tf32"},
};
constexpr std::array kNarrow = {
    NarrowFormat{"fp8", "fp8-current", "fp8"},
    NarrowFormat{"fp8-rowwise", "fp8-rowwise", "fp8"},
    NarrowFormat{"fp8-blockwise", "fp8-blockwise", "fp8"},
    NarrowFormat{"mxfp8", "mxfp8", "mxfp8"},
    NarrowFormat{"nvfp4", "nvfp4", "nvfp4"},
};
constexpr std::array kMemoryChoices = {
    MemoryChoice{.name = "state-bf16",
                 .subject = "state",
                 .help = "optimizer state in bf16",
                 .toml = "[optimizer]\nstate = \"bf16\"\n"},
    MemoryChoice{.name = "weights-nearest",
                 .subject = "weights",
                 .help = "weights in {} without masters, rounded to nearest",
                 .toml = "[storage]\nweight = \"{}\"\n[optimizer]\nmaster_weights = false\n"},
    MemoryChoice{.name = "weights-stochastic",
                 .subject = "weights",
                 .help = "weights in {} without masters, rounded stochastically",
                 .toml = "[storage]\nweight = \"{}\"\n[optimizer]\nmaster_weights = false\n"
                         "update_rounding = \"stochastic\"\n"},
    MemoryChoice{.name = "weights-kahan",
                 .subject = "weights",
                 .help = "weights in {} without masters, Kahan-compensated",
                 .toml = "[storage]\nweight = \"{}\"\n[optimizer]\nmaster_weights = false\n"
                         "update_rounding = \"kahan\"\n"},
    MemoryChoice{.name = "sums-fp16",
                 .subject = "sums",
                 .help = "sums of products in fp16",
                 .toml = "[gemm]\naccumulator = \"fp16\"\n",
                 .only = "fp16"},
    // torch._scaled_mm(use_fast_accum=True), Transformer Engine's use_split_accumulator=False.
    MemoryChoice{.name = "sums-fp8-fast",
                 .subject = "sums",
                 .help = "sums of fp8 products in 14 bits, Hopper's fast accumulation",
                 .toml = "[gemm]\naccumulator = \"hopper_fp8\"\n",
                 .only = "fp8"},
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

// The tables of the policy that are no rules: of the narrow format, TF32 and the memory choices.
std::string other_tables(const Candidate& candidate) {
  toml::table tables;
  if (!candidate.narrow.empty()) {
    tables.insert("scaling", scaling_of(*find_narrow_format(candidate.narrow)));
  }
  const auto add = [&](const toml::table& more) {
    for (const auto& [name, table] : more) {
      tables.insert(name, toml::table{});
      for (const auto& [key, value] : *table.as_table()) {
        tables[name].as_table()->insert_or_assign(key, value);
      }
    }
  };
  if (candidate.tf32) add(toml::table{{"gemm", toml::table{{"operand", "tf32"}}}});
  for (const std::string& name : candidate.memory) {
    add(toml::parse(fmt::format(fmt::runtime(find_memory_choice(name).toml), candidate.format)));
  }
  return tables.empty() ? "" : "\n" + toml_text(tables);
}

std::string rule_text(const KeptLayer& kept, const toml::table& rule) {
  require_literal(kept.layer);
  return "\n" + comment(kept.reason) + toml_text(toml::table{{"rule", toml::array{rule}}});
}

}  // namespace

void require_literal(const std::string& layer) {
  if (layer.find_first_of("*?") == std::string::npos) return;
  throw InputError(fmt::format("layer '{}': a policy's rule cannot name it alone", layer),
                   "* and ? in rules stand for other characters: rename the module");
}

std::string interval_sentence(const RangeTable& ranges) {
  if (!ranges.has_gradients()) return "";
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
  if (!ranges.has_gradients()) return {};
  if (!find_loss_scaler(base.loss_scale.kind).scales) {
    return ranges.scale_exponent == 0 ? ScaleChoice{} : static_scaler(ranges);
  }
  const ScaleInterval& fits = ranges.scales;
  if (fits.hi - fits.lo < kDynamicOctaves) return static_scaler(ranges);
  const double least = std::ldexp(1.0, fits.lo), most = std::ldexp(1.0, fits.hi);
  return {true, true, std::clamp(base.loss_scale.init_scale, least, most)};
}

std::span<const BaseFormat> base_formats() {
  return kBases;
}
bool is_tf32(const std::string& format) {
  return find_narrow_format(format) == nullptr && find_format(format).is_tf32();
}
bool has_16_bits(const std::string& format) {
  constexpr int kBits = 16;
  return find_narrow_format(format) == nullptr && find_format(format).storage_bits() == kBits;
}
std::span<const NarrowFormat> narrow_formats() {
  return kNarrow;
}
const NarrowFormat* find_narrow_format(std::string_view format) {
  const auto* const row = std::ranges::find(kNarrow, format, &NarrowFormat::format);
  return row == kNarrow.end() ? nullptr : row;
}
toml::table scaling_of(const NarrowFormat& narrow) {
  return *toml::parse(find_policy(narrow.preset).text)["scaling"].as_table();
}
std::span<const MemoryChoice> memory_choices() {
  return kMemoryChoices;
}
const MemoryChoice& find_memory_choice(std::string_view name) {
  return *std::ranges::find(kMemoryChoices, name, &MemoryChoice::name);
}

Policy autocast_policy(const std::string& format) {
  std::vector<std::string> known;
  for (const BaseFormat& base : kBases) {
    known.emplace_back(base.format);
    if (base.format == format) return find_policy(base.preset);
  }
  for (const NarrowFormat& narrow : kNarrow) known.emplace_back(narrow.format);
  throw InputError(fmt::format("--formats {}: no such format here", format),
                   did_you_mean(format, known));
}

Candidate plain_autocast(const std::string& format) {
  const Policy base = autocast_policy(format);
  const bool scales = find_loss_scaler(base.loss_scale.kind).scales;
  return {
      .lane = base.name, .format = format, .scale = {scales, scales, base.loss_scale.init_scale}};
}

Candidate make_candidate(const std::string& name, Candidate candidate, const std::string& evidence,
                         const std::string& about_scale) {
  const Policy base = autocast_policy(candidate.format);
  std::string toml = comment("Written by `lockstep recommend`. " + evidence);
  toml += toml_text(toml::table{{"name", name},
                                {"version", "1"},
                                {"extends", base.label()},
                                {"help", base.name + " with a fitting loss scale and exceptions"},
                                {"source", "lockstep recommend"}}) +
          "\n";
  const std::string scale_keys = scale_table(candidate.scale, base);
  if (!scale_keys.empty()) toml += comment(about_scale) + scale_keys;
  toml += other_tables(candidate);
  const auto linear_rule = [](const std::string& layer, std::string_view compute) {
    return toml::table{{"layer", layer}, {"op", "linear"}, {"compute", compute}};
  };
  if (!candidate.only_narrow.empty()) {
    toml += "\n" + comment("Other layers.") +
            toml_text(toml::table{{"rule", toml::array{linear_rule("*", candidate.format)}}});
  }
  for (const std::string& layers : candidate.only_narrow) {
    toml += "\n" + toml_text(toml::table{{"rule", toml::array{linear_rule(layers, kAsPolicy)}}});
  }
  for (const KeptLayer& kept : candidate.not_narrow) {
    toml += rule_text(kept, linear_rule(kept.layer, candidate.format));
  }
  for (const KeptLayer& kept : candidate.fp32) {
    toml += rule_text(kept, toml::table{{"layer", kept.layer}, {"compute", "fp32"}});
  }
  candidate.lane = name + ".toml";
  candidate.toml = std::move(toml);
  return candidate;
}

Policy policy_of(const Candidate& candidate) {
  return candidate.is_preset() ? find_policy(candidate.lane)
                               : parse_policy(candidate.toml, candidate.lane);
}

std::string policy_text(const Candidate& candidate) {
  if (!candidate.is_preset()) return candidate.toml;
  return make_candidate("recommended-" + candidate.format, candidate,
                        "Plain autocast trained as fp32 did.", "")
      .toml;
}

std::vector<KeptLayer> layers_out_of_range(const RangeTable& ranges) {
  std::vector<KeptLayer> layers;
  for (const LayerRange& layer : ranges.layers) {
    if (!layer.reason.empty()) layers.push_back({layer.layer, layer.reason});
  }
  return layers;
}

bool has_layer(const std::vector<KeptLayer>& layers, std::string_view layer) {
  return std::ranges::find(layers, layer, &KeptLayer::layer) != layers.end();
}

std::vector<KeptLayer> joined(std::vector<KeptLayer> layers, const std::vector<KeptLayer>& more) {
  for (const KeptLayer& one : more) {
    if (!has_layer(layers, one.layer)) layers.push_back(one);
  }
  return layers;
}

}  // namespace lockstep

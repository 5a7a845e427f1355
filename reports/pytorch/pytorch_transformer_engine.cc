// One of the library's own recipes where there is one, else a CustomRecipe. Its quantizers, one for
// each tensor along rows and one along columns, also serve as a factory for other programs:
//   fprop  input along rows,     weight along rows
//   dgrad  gradient along rows,  weight along columns
//   wgrad  input along columns,  gradient along columns
#include "reports/pytorch/pytorch_transformer_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "emulation/kernels/scaled_fp8.h"
#include "reports/pytorch/pytorch_factors.h"

namespace lockstep {
namespace {

// What its products take; MXFP8 has blocks of 32, FP8 block scaling ones of 128.
constexpr int kMultiple = 16, kMxMultiple = 32, kBlockMultiple = 128;
constexpr std::array<std::string_view, kFactorPlaces> kPlaces = {
    "input.rowwise",     "input.columnwise",    "weight.rowwise",
    "weight.columnwise", "grad_output.rowwise", "grad_output.columnwise"};

const Format& e4m3() {
  return find_format("fp8_e4m3+saturate");
}
const Format& e5m2() {
  return find_format("fp8_e5m2+saturate");
}

std::string quoted(std::string_view text) {
  return fmt::format("\"{}\"", text);
}

// A class of quantizers and its arguments.
using Quantizer = PythonTable;

std::optional<Quantizer> current_quantizer(const FactorScaling& s, const FactorFormat& factor) {
  return Quantizer{{"class", quoted("Float8CurrentScalingQuantizer")},
                   {"fp8_dtype", quoted(factor.element == &e4m3() ? "kFloat8E4M3" : "kFloat8E5M2")},
                   {"force_pow_2_scales", python_bool(s.current.power_of_two)},
                   {"amax_epsilon", fmt::to_string(s.current.amax_epsilon)}};
}

std::optional<Quantizer> block_quantizer(const FactorFormat& factor, bool rotates) {
  const bool is_nearest = factor.rounding == Rounding::kNearestEven;
  if (factor.has_own_scales()) return std::nullopt;
  if (is_nvfp4(factor)) {
    if (!is_nearest && factor.rounding != Rounding::kStochastic) return std::nullopt;
    Quantizer made{{"class", quoted("NVFP4Quantizer")}};
    for (const auto& [name, is_set] :
         {std::pair{"with_rht", rotates}, std::pair{"with_post_rht_amax", rotates},
          std::pair{"with_2d_quantization", factor.square},
          std::pair{"stochastic_rounding", !is_nearest}}) {
      if (is_set) made.emplace_back(name, python_bool(true));
    }
    return made;
  }
  if (!is_nearest || rotates) return std::nullopt;
  if (factor.block == &find_block_format("mxfp8_e4m3+rceil") && !factor.square) {
    return Quantizer{{"class", quoted("MXFP8Quantizer")}, {"fp8_dtype", quoted("kFloat8E4M3")}};
  }
  const bool is_e5m2 = factor.block == &find_block_format("fp8_e5m2_block");
  if (is_e5m2 || factor.block == &find_block_format("fp8_e4m3_block")) {
    return Quantizer{{"class", quoted("Float8BlockQuantizer")},
                     {"fp8_dtype", quoted(is_e5m2 ? "kFloat8E5M2" : "kFloat8E4M3")},
                     {"block_scaling_dim", factor.square ? "2" : "1"}};
  }
  return std::nullopt;
}

// Of one place; without rows: the factor is not rounded.
std::optional<Quantizer> quantizer(const FactorScaling& s, size_t place) {
  const std::optional<FactorFormat> factor = factor_at(s, place);
  if (!factor) return Quantizer{};
  if (s.of(kFactors.at(place).product).hadamard == Hadamard::kDrawn) return std::nullopt;
  if (s.kind == ScalingKind::kBlock) return block_quantizer(*factor, rotates_at(s, place));
  const bool is_fp8 = factor->element == &e4m3() || factor->element == &e5m2();
  if (s.kind != ScalingKind::kCurrent || !is_fp8 || factor->rounding != Rounding::kNearestEven)
    return std::nullopt;
  return current_quantizer(s, *factor);
}

// "{...}" over several lines, as a value in a dict of the module.
std::string literal(const Quantizer& quantizer) {
  if (quantizer.empty()) return "None";
  std::string out = "{\n";
  for (const auto& [key, value] : quantizer)
    out += fmt::format("        \"{}\": {},\n", key, value);
  return out + "    }";
}

bool is_fp8_forward(const FactorScaling& s) {
  return s.activation.element == &e4m3() && s.weight.element == &e4m3() &&
         (s.gradient.element == &e4m3() || s.gradient.element == &e5m2()) &&
         s.activation.rounding == Rounding::kNearestEven &&
         s.weight.rounding == Rounding::kNearestEven &&
         s.gradient.rounding == Rounding::kNearestEven;
}

bool is_all(const FactorScaling& s, std::string_view block, bool squares_weights) {
  const BlockFormat* format = &find_block_format(block);
  return s.activation.block == format && s.weight.block == format && s.gradient.block == format &&
         s.weight.square == squares_weights && is_fp8_forward(s) &&
         !s.activation.has_own_scales() && !s.weight.has_own_scales() &&
         !s.gradient.has_own_scales();
}

PythonTable delayed_recipe(const FactorScaling& s) {
  const bool is_max = s.delayed.choice == AmaxChoice::kMax;
  return {{"class", quoted("DelayedScaling")},
          {"fp8_format", quoted(s.gradient.element == &e4m3() ? "E4M3" : "HYBRID")},
          {"margin", fmt::to_string(s.delayed.margin)},
          {"amax_history_len", fmt::to_string(s.delayed.history_length)},
          {"amax_compute_algo", quoted(is_max ? "max" : "most_recent")}};
}

// One of the library's own recipes; empty: it has none.
PythonTable own_recipe(const FactorScaling& s, const FastSums& fast) {
  if (const Nvfp4Recipe nvfp4 = nvfp4_recipe(s); nvfp4.is_nvfp4) {
    return {{"class", quoted("NVFP4BlockScaling")},
            {"disable_rht", python_bool(!nvfp4.rotates_wgrad)},
            {"disable_stochastic_rounding", python_bool(!nvfp4.is_stochastic)},
            {"disable_2d_quantization", python_bool(!nvfp4.squares_weights)}};
  }
  if (!s.is_uniform() || !is_fp8_forward(s)) return {};
  switch (s.kind) {
    case ScalingKind::kNone:
    case ScalingKind::kUnit:
      return {};
    case ScalingKind::kCurrent:
      // Other numbers are set by environment variables or by private fields.
      if (s.current.power_of_two || s.current.amax_epsilon != 0) return {};
      if (std::ranges::count(fast, fast.front()) != kProducts) return {};
      return {{"class", quoted("Float8CurrentScaling")},
              {"fp8_format", quoted(s.gradient.element == &e4m3() ? "E4M3" : "HYBRID")},
              {"use_split_accumulator", python_bool(fast == kNoFastSums)}};
    case ScalingKind::kDelayed:
      return delayed_recipe(s);
    case ScalingKind::kBlock:
      if (is_all(s, "mxfp8_e4m3+rceil", false))
        return {{"class", quoted("MXFP8BlockScaling")}, {"fp8_format", quoted("E4M3")}};
      if (is_all(s, "fp8_e4m3_block", true))
        return {{"class", quoted("Float8BlockScaling")}, {"fp8_format", quoted("E4M3")}};
      return {};
  }
  return {};
}

int multiple_of(const FactorScaling& s) {
  if (s.kind != ScalingKind::kBlock) return kMultiple;
  int most = kMultiple;
  for (size_t place = 0; place < kFactorPlaces; ++place) {
    const std::optional<FactorFormat> factor = factor_at(s, place);
    if (!factor) continue;
    const bool is_mx = factor->block == &find_block_format("mxfp8_e4m3+rceil");
    most = std::max(most, is_mx ? kMxMultiple : is_nvfp4(*factor) ? kMultiple : kBlockMultiple);
  }
  return most;
}

}  // namespace

std::optional<LibraryCall> transformer_engine_call(const FactorScaling& s, const FastSums& fast) {
  const bool is_delayed = s.kind == ScalingKind::kDelayed;
  if (is_delayed && !(is_fp8_forward(s) && s.is_uniform())) return std::nullopt;
  PythonTable quantizers;
  for (size_t place = 0; place < kFactorPlaces && !is_delayed; ++place) {
    const std::optional<Quantizer> made = quantizer(s, place);
    if (!made) return std::nullopt;
    quantizers.emplace_back(kPlaces[place], literal(*made));
  }
  LibraryCall call{.region = is_delayed ? "te_delayed" : "te_quantizers",
                   .multiple = multiple_of(s),
                   .facts = {},
                   .remark = "Lockstep never ran Transformer Engine."};
  const PythonTable recipe = own_recipe(s, fast);
  call.facts.push_back({"A class of transformer_engine.common.recipe, and the arguments.", "RECIPE",
                        "",
                        recipe.empty() ? PythonTable{{"class", quoted("CustomRecipe")}} : recipe});
  if (!is_delayed) {
    call.facts.push_back({"A quantizer for each tensor, along rows and along columns; None: none.",
                          "QUANTIZERS", "", std::move(quantizers)});
  }
  const bool is_tensorwise = s.kind == ScalingKind::kCurrent || is_delayed;
  if (is_tensorwise && (is_delayed || recipe.empty()))
    call.remark += " Its forward products, and no others, use fast accumulation.";
  call.says_sums = fast != kNoFastSums && s.kind == ScalingKind::kCurrent && !recipe.empty();
  return call;
}

}  // namespace lockstep

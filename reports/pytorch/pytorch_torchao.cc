// Float8LinearConfig has a cast for each factor of each product; MXFP8 and NVFP4 are one recipe
// each with a few switches.
#include "reports/pytorch/pytorch_torchao.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "reports/pytorch/pytorch_factors.h"

namespace lockstep {
namespace {

// What the products of torchao's kernels take.
constexpr int kFloat8Multiple = 16, kMxfp8Multiple = 32, kNvfp4Multiple = 128;
// torchao's least amax, in FP8.
constexpr float kLeastAmax = 1e-12F;

constexpr std::string_view kTensorwise = "TENSORWISE", kAxiswise = "AXISWISE",
                           kDisabled = "DISABLED";
constexpr std::string_view kE4m3 = "float8_e4m3fn", kE5m2 = "float8_e5m2";

constexpr std::string_view kBiasRemark =
    "torchao adds a bias after the product is rounded, the policy before.";

// Float8LinearConfig.cast_config_<name>.
struct Cast {
  std::string_view name;
  std::string_view granularity, dtype;
};
using Casts = std::array<Cast, kFactorPlaces>;

constexpr std::array<std::string_view, kFactorPlaces> kCastNames = {
    "input",       "input_for_grad_weight",      "weight", "weight_for_grad_input",
    "grad_output", "grad_output_for_grad_weight"};

constexpr std::array<std::string_view, kProducts> kGemmNames = {"output", "grad_input",
                                                                "grad_weight"};

struct NamedRecipe {
  std::string_view name;
  std::array<std::string_view, kFactorPlaces> granularities;
  std::string_view gradient_dtype;
  bool power_of_two;
};
// Float8LinearConfig.from_recipe_name.
constexpr NamedRecipe kNamedRecipes[] = {
    {"tensorwise",
     {kTensorwise, kTensorwise, kTensorwise, kTensorwise, kTensorwise, kTensorwise},
     kE5m2,
     false},
    {"rowwise", {kAxiswise, kAxiswise, kAxiswise, kAxiswise, kAxiswise, kAxiswise}, kE4m3, true},
    {"rowwise_with_gw_hp",
     {kAxiswise, kDisabled, kAxiswise, kTensorwise, kAxiswise, kDisabled},
     kE4m3,
     true},
};

std::optional<Cast> cast_of(const FactorScaling& s, size_t place) {
  Cast cast{kCastNames[place], kDisabled, ""};
  const std::optional<FactorFormat> factor = factor_at(s, place);
  if (!factor) return cast;
  const bool is_e4m3 = factor->element == &find_format("fp8_e4m3+saturate");
  const bool is_e5m2 = factor->element == &find_format("fp8_e5m2+saturate");
  if (!(is_e4m3 || is_e5m2) || factor->rounding != Rounding::kNearestEven) return std::nullopt;
  cast.dtype = is_e4m3 ? kE4m3 : kE5m2;
  if (s.kind == ScalingKind::kCurrent) {
    cast.granularity = kTensorwise;
    return cast;
  }
  const bool is_line = factor->block == &find_block_format("fp8_e4m3_line") ||
                       factor->block == &find_block_format("fp8_e5m2_line");
  const bool has_least = factor->amax_epsilon == 0 || factor->amax_epsilon == kLeastAmax;
  if (!is_line || !has_least || rotates_at(s, place)) return std::nullopt;
  cast.granularity = factor->square ? kTensorwise : kAxiswise;
  return cast;
}

// Both casts of a tensor have one dtype, also where one is disabled.
bool unite_dtypes(Casts& casts) {
  for (size_t i = 0; i < casts.size(); i += 2) {
    Cast &one = casts[i], &other = casts[i + 1];
    if (one.dtype.empty()) one.dtype = other.dtype;
    if (other.dtype.empty()) other.dtype = one.dtype;
    if (one.dtype.empty()) one.dtype = other.dtype = kE4m3;
    if (one.dtype != other.dtype) return false;
  }
  return true;
}

// "rowwise", or "" of none.
std::string recipe_name(const Casts& casts, bool power_of_two) {
  for (const NamedRecipe& recipe : kNamedRecipes) {
    const bool is_same = std::ranges::equal(casts, recipe.granularities, {}, &Cast::granularity) &&
                         casts[0].dtype == kE4m3 && casts[2].dtype == kE4m3 &&
                         casts[4].dtype == recipe.gradient_dtype &&
                         power_of_two == recipe.power_of_two;
    if (is_same) return std::string(recipe.name);
  }
  return "";
}

// torchao has one rule for all casts.
struct Scales {
  bool are_fp32, has_least_amax;
  bool operator==(const Scales&) const = default;
};
std::optional<Scales> scales_of_lines(const FactorScaling& s) {
  std::optional<Scales> all;
  for (size_t place = 0; place < kFactorPlaces; ++place) {
    const std::optional<FactorFormat> factor = factor_at(s, place);
    if (!factor) continue;
    const Scales own{factor->fp32_scale, factor->amax_epsilon > 0};
    if (all && own != *all) return std::nullopt;
    all = own;
  }
  return all;
}

std::optional<LibraryCall> float8_call(const FactorScaling& s, const FastSums& fast) {
  const bool is_current = s.kind == ScalingKind::kCurrent;
  if (!is_current && s.kind != ScalingKind::kBlock) return std::nullopt;
  if (is_current && s.current.amax_epsilon != 0 && s.current.amax_epsilon != kLeastAmax)
    return std::nullopt;
  Casts casts;
  for (size_t place = 0; place < casts.size(); ++place) {
    const std::optional<Cast> cast = cast_of(s, place);
    if (!cast) return std::nullopt;
    casts[place] = *cast;
  }
  if (!unite_dtypes(casts)) return std::nullopt;
  bool power_of_two = s.current.power_of_two, counts_least = s.current.amax_epsilon > 0;
  if (!is_current) {
    const std::optional<Scales> scales = scales_of_lines(s);
    if (!scales) return std::nullopt;
    power_of_two = !scales->are_fp32;
    counts_least = scales->has_least_amax;
  }
  LibraryCall call{.region = "float8", .multiple = kFloat8Multiple, .facts = {}, .remark = ""};
  PythonTable table;
  for (const Cast& cast : casts) {
    table.emplace_back(cast.name, fmt::format("(\"{}\", torch.{})", cast.granularity, cast.dtype));
  }
  call.facts.push_back({"cast_config_<key> of Float8LinearConfig: granularity and format.", "CASTS",
                        "", std::move(table)});
  call.facts.push_back({"", "POWER_OF_TWO_SCALES", python_bool(power_of_two), {}});
  PythonTable sums;
  for (const ProductInfo& info : products()) {
    sums.emplace_back(kGemmNames.at(static_cast<size_t>(info.product)),
                      python_bool(fast.at(static_cast<size_t>(info.product))));
  }
  call.facts.push_back({"use_fast_accum of gemm_config_<key>.", "FAST_SUMS", "", std::move(sums)});
  call.says_sums = fast != kNoFastSums;
  const std::string name = recipe_name(casts, power_of_two);
  call.facts.push_back(
      {"Of torchao's recipe with these casts, for other programs; it adds fast accumulation in "
       "fprop.",
       "RECIPE_NAME",
       name.empty() ? "None" : fmt::format("\"{}\"", name),
       {}});
  call.remark = kBiasRemark;
  if (!counts_least)
    call.remark += " torchao counts a largest magnitude below 1e-12 as 1e-12, the policy does not.";
  return call;
}

struct MxScales {
  ScaleRule rule;
  std::string_view name;  // of ScaleCalculationMode
  bool has_kernels;
};
constexpr MxScales kMxScales[] = {
    {ScaleRule::kFloor, "FLOOR", true},
    {ScaleRule::kCeil, "CEIL", false},
    {ScaleRule::kRceil, "RCEIL", true},
    {ScaleRule::kRound, "EVEN", false},
};

// Whether a factor of one product is rounded to `block` in lines, to nearest.
bool is_plain(const FactorScaling& s, size_t place, const BlockFormat& block) {
  const std::optional<FactorFormat> factor = factor_at(s, place);
  return factor && factor->block == &block && !factor->square && !factor->has_own_scales() &&
         !rotates_at(s, place) && factor->rounding == Rounding::kNearestEven;
}

std::optional<LibraryCall> mxfp8_call(const FactorScaling& s, const FastSums& /*fast*/) {
  if (s.kind != ScalingKind::kBlock || !s.of(Product::kFprop).is_scaled ||
      !s.of(Product::kDgrad).is_scaled)
    return std::nullopt;
  for (const MxScales& scales : kMxScales) {
    const BlockFormat& block =
        find_block_format(fmt::format("mxfp8_e4m3+{}", to_string(scales.rule)));
    bool is_same = true;
    for (size_t place = 0; place < kFactorPlaces; ++place) {
      is_same = is_same && (is_plain(s, place, block) || !factor_at(s, place));
    }
    if (!is_same) continue;
    LibraryCall call{.region = "mxfp8", .multiple = kMxfp8Multiple, .facts = {}, .remark = ""};
    call.facts.push_back(
        {"A ScaleCalculationMode, and whether wgrad keeps the factors of autocast.",
         "MX_SCALES",
         fmt::format("\"{}\"", scales.name),
         {}});
    call.facts.push_back({"", "WGRAD_WITH_HP", python_bool(!s.of(Product::kWgrad).is_scaled), {}});
    call.remark =
        fmt::format("{} Its factors are 16-bit numbers before they are rounded.", kBiasRemark);
    if (!scales.has_kernels)
      call.remark += fmt::format(" torchao has {} scales in emulation alone.", scales.name);
    return call;
  }
  return std::nullopt;
}

// nvfp4 in all products: weights in squares, gradients stochastic, wgrad after a Hadamard
// transform.
std::optional<LibraryCall> nvfp4_call(const FactorScaling& s, const FastSums& /*fast*/) {
  const Nvfp4Recipe recipe = nvfp4_recipe(s);
  if (!recipe.is_nvfp4 || !recipe.rotates_wgrad || !recipe.is_stochastic || !recipe.squares_weights)
    return std::nullopt;
  LibraryCall call{.region = "nvfp4", .multiple = kNvfp4Multiple, .facts = {}, .remark = ""};
  call.facts.push_back({"Of the Hadamard transform.", "HADAMARD_SIGNS", hadamard_signs_text(), {}});
  call.remark = fmt::format(
      "{} torchao's NVFP4 needs a Blackwell GPU and has no emulation. "
      "Lockstep never ran it.",
      kBiasRemark);
  return call;
}

}  // namespace

std::optional<LibraryCall> torchao_call(const FactorScaling& scaling, const FastSums& fast) {
  for (auto* call : {float8_call, mxfp8_call, nvfp4_call}) {
    if (std::optional<LibraryCall> found = call(scaling, fast)) return found;
  }
  return std::nullopt;
}

}  // namespace lockstep

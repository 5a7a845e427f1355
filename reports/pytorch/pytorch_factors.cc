// See pytorch_factors.h.
#include "reports/pytorch/pytorch_factors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/lower/scaled_cast.h"

namespace lockstep {

std::optional<FactorFormat> factor_at(const FactorScaling& scaling, size_t place) {
  const auto& [role, product] = kFactors.at(place);
  if (scaling.kind == ScalingKind::kNone || !scaling.of(product).is_scaled) return std::nullopt;
  return scaling.factor(product, role);
}

bool rotates_at(const FactorScaling& scaling, size_t place) {
  return scaling.of(kFactors.at(place).product).hadamard != Hadamard::kNone;
}

bool is_nvfp4(const FactorFormat& factor) {
  static const BlockFormat* nvfp4 = &find_block_format("nvfp4");
  return factor.block == nvfp4;
}

Nvfp4Recipe nvfp4_recipe(const FactorScaling& scaling) {
  if (scaling.kind != ScalingKind::kBlock) return {};
  Nvfp4Recipe found{.is_nvfp4 = true};
  std::optional<bool> stochastic, squares;
  // Whether both products agree.
  const auto agrees = [](std::optional<bool>& before, bool now) {
    const bool is_same = before.value_or(now) == now;
    before = now;
    return is_same;
  };
  for (size_t place = 0; place < kFactorPlaces; ++place) {
    const auto& [role, product] = kFactors.at(place);
    const std::optional<FactorFormat> factor = factor_at(scaling, place);
    if (!factor || !is_nvfp4(*factor)) return {};
    const bool is_gradient = role == FactorRole::kGradient, is_weight = role == FactorRole::kWeight;
    const bool is_random = factor->rounding == Rounding::kStochastic;
    if (!is_random && factor->rounding != Rounding::kNearestEven) return {};
    if (is_gradient ? !agrees(stochastic, is_random) : is_random) return {};
    if (is_weight ? !agrees(squares, factor->square) : factor->square) return {};
    if (rotates_at(scaling, place) && product != Product::kWgrad) return {};
    if (scaling.of(product).hadamard == Hadamard::kDrawn) return {};
  }
  found.is_stochastic = stochastic.value_or(false);
  found.squares_weights = squares.value_or(false);
  found.rotates_wgrad = scaling.of(Product::kWgrad).hadamard != Hadamard::kNone;
  return found;
}

FastSums fast_sums(const Policy& policy) {
  static const Accumulator* fast = &find_accumulator("hopper_fp8");
  FastSums found;
  for (const ProductInfo& info : products()) {
    const Accumulator* own = policy.scaling.of(info.product).accumulator;
    found[static_cast<size_t>(info.product)] =
        (own == nullptr ? policy.gemm_accumulator : own) == fast;
  }
  return found;
}

std::string hadamard_signs_text() {
  std::vector<int> signs;
  for (uint32_t i = 0; i < kHadamardSize; ++i) {
    signs.push_back((kFixedHadamardSigns >> i) % 2 == 1 ? -1 : 1);
  }
  return fmt::format("({})", fmt::join(signs, ", "));
}

}  // namespace lockstep

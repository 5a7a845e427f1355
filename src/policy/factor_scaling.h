// [scaling] of a policy as plain data: which ops, which formats, which rule gives the scale.
// A scale brings the factors of products into the range of a narrow format. Each factor is
// multiplied by its scale and rounded; the sums run on the rounded numbers; the scales are divided
// out before anything else is added. Containers hold q, not q / s: where s is no power of two, the
// quotient would be rounded once more. Knows nothing of graphs.
//
//   q_a = round(a s_a)   q_b = round(b s_b)   y = (sum q_a q_b) (1/s_a) (1/s_b)
//
// Source: NVIDIA Transformer Engine 2.x, `common/recipe`: DelayedScaling, Float8CurrentScaling,
// Float8BlockScaling, MXFP8BlockScaling, NVFP4BlockScaling; torchao float8; the formulas are in
// emulation/kernels/scaled_fp8.h and emulation/format/block_format.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/format/block_format.h"
#include "emulation/kernels/scaled_fp8.h"

namespace lockstep {

enum class ScalingKind : uint8_t {
  kNone,     // factors keep the format that autocast gives
  kUnit,     // s = 1: rounding without a scale
  kCurrent,  // s from the largest magnitude of the tensor itself
  kDelayed,  // s from the largest magnitudes of earlier steps
  kBlock,    // one scale per block of neighbours along the sum; e4m3 block scales on top of s
};
struct ScalingKindInfo {
  ScalingKind kind;
  std::string_view name, help;
};
std::span<const ScalingKindInfo> scaling_kinds();
std::string_view to_string(ScalingKind kind);

// What a factor is rounded to.
struct FactorFormat {
  const Format* element = nullptr;
  const BlockFormat* block = nullptr;  // kBlock
  Rounding rounding = Rounding::kNearestEven;
  // Blocks of a weight are squares: the rounded weight is the same along either axis of the sum.
  bool square = false;
  // Scales of FP8 blocks that differ from the format's own (emulation/format/block_format.h):
  //   s = fp32(max_finite / amax), the quotient in FP64, an amax below amax_epsilon counts as it
  // and its fraction bits are cut unless fp32_scale. Source: torchao, float8/float8_utils.py and
  // prototype/blockwise_fp8_training/kernels.py.
  bool fp32_scale = false;
  float amax_epsilon = 0;

  bool has_own_scales() const { return fp32_scale || amax_epsilon > 0; }
  std::string name() const;  // "fp8_e4m3+saturate", "mxfp8_e4m3+rceil", "nvfp4, squares"
  bool operator==(const FactorFormat&) const = default;
};

// The three products of a linear layer: y = x w^T, dx = dy w, dw = dy^T x. Other ops have the same
// three; the gradient that reads the op's first operand is wgrad.
enum class Product : uint8_t { kFprop, kDgrad, kWgrad };
inline constexpr int kProducts = 3;
struct ProductInfo {
  Product product;
  std::string_view name, help;
};
std::span<const ProductInfo> products();
std::string_view to_string(Product product);

// A Hadamard transform of both factors of a product, along the sum, before their scales are found.
enum class Hadamard : uint8_t {
  kNone,
  kFixed,  // with the signs of NVFP4's recipe
  kDrawn,  // with signs drawn from FactorScaling::hadamard_seed, the same in every step
};

// What a factor is.
enum class FactorRole : uint8_t { kActivation, kWeight, kGradient };

// [scaling.fprop], [scaling.dgrad], [scaling.wgrad]: where one product differs from [scaling].
struct ProductScaling {
  bool is_scaled = true;  // false: factors keep the formats of [autocast] and [gemm]
  Hadamard hadamard = Hadamard::kNone;
  FactorFormat operand, gradient;  // null formats: as in [scaling]
  std::optional<Rounding> rounding, grad_rounding;
  std::optional<bool> weight_square;
  // How the rounded numbers are summed; null: as [gemm] says. With blocks, each block's elements
  // are summed this way from zero, times both scales, and added to an FP32 register.
  const Accumulator* accumulator = nullptr;

  bool operator==(const ProductScaling&) const = default;
};

struct FactorScaling {
  ScalingKind kind = ScalingKind::kNone;
  std::vector<std::string> ops = {"linear"};  // forward ops; their gradients follow
  FactorFormat activation, weight, gradient;
  CurrentScaling current;  // kCurrent
  DelayedScaling delayed;  // kDelayed
  std::array<ProductScaling, kProducts> products;
  uint64_t hadamard_seed = 0;  // Hadamard::kDrawn

  const ProductScaling& of(Product product) const { return products[static_cast<size_t>(product)]; }
  // What a factor of one product is rounded to. Requires: of(product).is_scaled.
  FactorFormat factor(Product product, FactorRole role) const;
  // Whether all three products round their factors alike.
  bool is_uniform() const;
};

}  // namespace lockstep

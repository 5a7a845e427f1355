// The six factors of the three products of a linear layer, in an order that both libraries use.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "src/policy/policy.h"

namespace lockstep {

// A tensor, and the product that reads it: input in fprop and wgrad, weight in fprop and dgrad,
// gradient of the output in dgrad and wgrad.
struct FactorPlace {
  FactorRole role;
  Product product;
};
inline constexpr size_t kFactorPlaces = 6;
inline constexpr std::array<FactorPlace, kFactorPlaces> kFactors = {
    FactorPlace{FactorRole::kActivation, Product::kFprop},
    FactorPlace{FactorRole::kActivation, Product::kWgrad},
    FactorPlace{FactorRole::kWeight, Product::kFprop},
    FactorPlace{FactorRole::kWeight, Product::kDgrad},
    FactorPlace{FactorRole::kGradient, Product::kDgrad},
    FactorPlace{FactorRole::kGradient, Product::kWgrad}};

// Absent: the product is not scaled.
std::optional<FactorFormat> factor_at(const FactorScaling& scaling, size_t place);
// Whether a Hadamard transform comes first.
bool rotates_at(const FactorScaling& scaling, size_t place);

bool is_nvfp4(const FactorFormat& factor);

// What is left to choose if all factors are nvfp4 as in the published recipe: inputs and weights
// rounded to nearest, the transform in wgrad alone.
struct Nvfp4Recipe {
  bool is_nvfp4 = false;  // false: the others mean nothing
  bool is_stochastic = false, rotates_wgrad = false, squares_weights = false;
};
Nvfp4Recipe nvfp4_recipe(const FactorScaling& scaling);

// "(1, 1, 1, -1, ...)"
std::string hadamard_signs_text();

// By product: whether FP8 numbers are summed in 14 bits, Hopper's fast accumulation.
using FastSums = std::array<bool, kProducts>;
inline constexpr FastSums kNoFastSums = {};
FastSums fast_sums(const Policy& policy);

}  // namespace lockstep

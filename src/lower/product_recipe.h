// The recipe of every product of a program: what its factors are rounded to and how it is summed.
// The rows that `lockstep explain` prints and draws. Products that agree in all of it share a row.
#pragma once

#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/lower/program.h"
#include "src/policy/factor_scaling.h"

namespace lockstep {

// A factor, in words. "" where there is nothing to say.
struct FactorRecipe {
  std::string operand;      // "x", "w", "dy"
  std::string format;       // of its elements: "fp8_e4m3+saturate"
  std::string granularity;  // what shares a scale: "tensor", "1x16", "128x128", "line"
  std::string scale;        // the scale's numbers: "FP32, its own amax", "2^n, rceil"
  std::string rounding;
  std::string transform;  // "Hadamard 16, fixed signs"

  bool operator==(const FactorRecipe&) const = default;
};

struct ProductRecipe {
  std::string op;  // the forward op
  Product product = Product::kFprop;
  FactorRecipe factors[2];
  std::string sum;                  // "fp32_fused"; "hopper_fp8 per 128, added in fp32"
  std::string result;               // its format
  std::vector<std::string> layers;  // in order

  bool is_scaled() const { return !factors[0].scale.empty() || !factors[1].scale.empty(); }
  bool reads_weight() const { return factors[0].operand == "w" || factors[1].operand == "w"; }
  bool same_recipe(const ProductRecipe& other) const;
};

// In the order of the program: all rows of fprop, then those of the gradients. Ops with two factors
// that are not matrices of one product (a recurrent layer) are left out.
std::vector<ProductRecipe> product_recipes(const Program& program, const Graph& step);

// The rows as a table. "" if no factor is scaled and no two layers differ.
std::string recipe_table(const std::vector<ProductRecipe>& recipes);

}  // namespace lockstep

// A picture of one layer's three products: what each factor is rounded to, how it is scaled and how
// the products are summed. A row per product; matrices carry the grid of their blocks.
#pragma once

#include <span>
#include <string>

#include "src/lower/product_recipe.h"

namespace lockstep {

// An SVG document. Of several recipes of one product, the one with most layers is drawn; all are of
// the op with most layers that have weights. `title`: a line above the picture.
// Throws: InputError if no product has weights.
std::string recipe_svg(std::span<const ProductRecipe> recipes, const std::string& title);

}  // namespace lockstep

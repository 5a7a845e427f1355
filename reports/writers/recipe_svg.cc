// Plain SVG with its own colours for light and dark pages; text is real text.
#include "reports/writers/recipe_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "reports/writers/html_text.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

// SVG units.
constexpr int kWidth = 1010, kTop = 64, kRow = 118;
constexpr int kFirst = 120, kSecond = 440, kSum = 750;  // left edges of the columns
constexpr int kTile = 64, kText = 78, kLine = 17;       // a matrix; its text to the right of it

constexpr const char* kStyle =
    "svg{font:13px system-ui,sans-serif}text{fill:#1b1b1b}.dim{fill:#666}.head{font-weight:600}"
    ".tile{fill:#e8eefc;stroke:#3558a8;stroke-width:1.2}.plain{fill:#f1f1f1;stroke:#888}"
    ".grid{stroke:#3558a8;stroke-width:.7}.block{fill:#3558a8;fill-opacity:.35}"
    "@media(prefers-color-scheme:dark){svg{background:#161616}text{fill:#eee}.dim{fill:#aaa}"
    ".tile{fill:#22304f;stroke:#8fb0ff}.plain{fill:#2a2a2a;stroke:#888}.grid{stroke:#8fb0ff}"
    ".block{fill:#8fb0ff}}";

std::string text_at(int x, int y, std::string_view text, std::string_view css = "") {
  return fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", x, y,
                     css.empty() ? "" : fmt::format(" class=\"{}\"", css), html_text(text));
}

std::string line(int x1, int y1, int x2, int y2) {
  return fmt::format("<line class=\"grid\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", x1, y1, x2,
                     y2);
}

// A matrix with the grid of its blocks; the first block is filled. The sum runs along rows in the
// left factor and down columns in the right one. Shapes, not sizes: a block of 16 is a quarter.
std::string tile(int x, int y, const FactorRecipe& factor, bool sums_along_rows) {
  std::string out =
      fmt::format("<rect class=\"{0}\" x=\"{1}\" y=\"{2}\" width=\"{3}\" height=\"{3}\"/>\n",
                  factor.scale.empty() ? "plain" : "tile", x, y, kTile);
  if (factor.granularity.empty()) return out;
  constexpr int kParts = 4, kStrips = 8;
  const bool is_square =
      factor.granularity.find('x') != std::string::npos && !factor.granularity.starts_with("1x");
  const bool is_line = factor.granularity == "line", is_tensor = factor.granularity == "tensor";
  int along = kParts, across = kStrips;  // cuts along the sum and across it
  if (is_square) across = kParts;
  if (is_line) along = 1;
  if (is_tensor) along = across = 1;
  const int columns = sums_along_rows ? along : across, rows = sums_along_rows ? across : along;
  out += fmt::format("<rect class=\"block\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", x, y,
                     kTile / columns, kTile / rows);
  for (int i = 1; i < columns; ++i) {
    out += line(x + i * kTile / columns, y, x + i * kTile / columns, y + kTile);
  }
  for (int i = 1; i < rows; ++i) {
    out += line(x, y + i * kTile / rows, x + kTile, y + i * kTile / rows);
  }
  return out;
}

std::string factor_at(int x, int y, const FactorRecipe& factor, bool is_left) {
  std::string out = tile(x, y, factor, is_left);
  int at = y + kLine - 4;
  const auto say = [&](const std::string& text, std::string_view css) {
    if (text.empty()) return;
    out += text_at(x + kText, at, text, css);
    at += kLine;
  };
  say(factor.operand + ": " + factor.format, "head");
  if (factor.scale.empty()) {
    say("not scaled", "dim");
    return out;
  }
  say(factor.granularity.empty() ? "" : "a scale per " + factor.granularity, "");
  say("scale " + factor.scale, "dim");
  say(factor.rounding, "dim");
  say(factor.transform.empty() ? "" : "after " + factor.transform, "");
  return out;
}

std::string sum_at(int x, int y, const ProductRecipe& recipe) {
  // "hopper_fp8 per 128, added in fp32" in two lines.
  const size_t cut = std::min(recipe.sum.find(' '), recipe.sum.size());
  std::string out = text_at(x, y + kLine - 4, "summed in " + recipe.sum.substr(0, cut), "head");
  int at = y + 2 * kLine - 4;
  if (cut < recipe.sum.size()) {
    out += text_at(x, at, recipe.sum.substr(cut + 1));
    at += kLine;
  }
  out += text_at(x, at, "result " + recipe.result);
  const size_t count = recipe.layers.size();
  const std::string layers = count == 1 ? recipe.layers[0] : fmt::format("{} layers", count);
  return out + text_at(x, at + kLine, layers, "dim");
}

std::string_view formula(Product product) {
  for (const ProductInfo& row : products()) {
    if (row.product == product) return row.help;
  }
  return "";
}

// The recipe of the product with most layers, of ops with weights; null: none. `op`: "" for any.
const ProductRecipe* most_used(std::span<const ProductRecipe> recipes, Product product,
                               const std::string& op) {
  const ProductRecipe* best = nullptr;
  for (const ProductRecipe& recipe : recipes) {
    if (recipe.product != product || (op.empty() ? !recipe.reads_weight() : recipe.op != op)) {
      continue;
    }
    if (best == nullptr || recipe.layers.size() > best->layers.size()) best = &recipe;
  }
  return best;
}

}  // namespace

std::string recipe_svg(std::span<const ProductRecipe> recipes, const std::string& title) {
  const ProductRecipe* forward = most_used(recipes, Product::kFprop, "");
  if (forward == nullptr) throw InputError("a recipe: no product of weights to draw");
  std::string body;
  int y = kTop;
  for (const ProductInfo& info : products()) {
    const ProductRecipe* recipe = most_used(recipes, info.product, forward->op);
    if (recipe == nullptr) continue;
    body += text_at(12, y + kLine - 4, info.name, "head");
    body += text_at(12, y + 2 * kLine - 4, formula(info.product));
    body += factor_at(kFirst, y, recipe->factors[0], /*is_left=*/true);
    body += text_at(kSecond - 26, y + kTile / 2, "x", "head");
    body += factor_at(kSecond, y, recipe->factors[1], /*is_left=*/false);
    body += sum_at(kSum, y, *recipe);
    y += kRow;
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
             "height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n<style>{3}</style>\n",
             kWidth, std::max(y, kTop + kRow) - kRow / 8, html_text(title), kStyle) +
         text_at(12, 28, title, "head") + body + "</svg>\n";
}

}  // namespace lockstep

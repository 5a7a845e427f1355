// Rewrites of a forward graph: the same mathematics in other operations, or another constant.
// A rewrite is a text, "NAME:NODE" or "NAME:NODE=NUMBER", which the options of a run keep, so that
// the run can be repeated. Each is one row and one file. Knows nothing of formats or policies.
//
//   eps:n12=0.001     a constant that keeps a divisor or a root away from zero
//   with_logits:n9    log(sigmoid(x)) or log(softmax(x)) as one operation of x
//   scale_first:n20   the factor on a product of matrices goes to the product's first operand
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"

namespace lockstep {

struct RewriteRow {
  std::string_view name, help;
  bool takes_number;
  // Whether it can begin at this node.
  bool (*applies)(const Graph& forward, const Node& node);
  // The number it has now (an eps); NaN for those without one.
  double (*number)(const Node& node);
  void (*apply)(Graph& forward, size_t node, double number);
};
std::span<const RewriteRow> rewrites();

// Applies them in order. Throws: InputError naming the text: no such rewrite or node, a missing or
// superfluous number, or a node to which it does not apply.
void apply_rewrites(Graph& forward, std::span<const std::string> texts);

// A rewrite near a node: of itself, or of what computes its operands at most `depth` nodes before.
struct NearRewrite {
  const RewriteRow* row;
  const Node* node;
  // "eps:n12=0.001". Requires: a number where the row takes one.
  std::string text(std::optional<double> number) const;
};
std::vector<NearRewrite> rewrites_near(const Graph& forward, std::string_view node, int depth);
// Those that begin at a reader of the value, through casts.
std::vector<NearRewrite> rewrites_after(const Graph& forward, const std::string& value);

}  // namespace lockstep

// The list of rewrites, and the reading of their texts.
#include "src/graph/rewrite/rewrite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/rewrite/eps.h"
#include "src/graph/rewrite/scale_first.h"
#include "src/graph/rewrite/with_logits.h"
#include "src/graph/validate.h"

namespace lockstep {
namespace {

double no_number(const Node&) {
  return std::numeric_limits<double>::quiet_NaN();
}

constexpr std::array kRows = {
    RewriteRow{.name = "eps",
               .help = "a constant that keeps a divisor or a root away from zero",
               .takes_number = true,
               .applies = has_eps,
               .number = eps_of,
               .apply = set_eps},
    RewriteRow{.name = "with_logits",
               .help = "log(sigmoid(x)) or log(softmax(x)) as one operation of x",
               .takes_number = false,
               .applies = is_log_of_probability,
               .number = no_number,
               .apply = take_log_of_logits},
    RewriteRow{.name = "scale_first",
               .help = "the factor on a product of matrices goes to its first operand",
               .takes_number = false,
               .applies = is_scaled_product,
               .number = no_number,
               .apply = scale_first_operand},
};

void apply_one(Graph& forward, const std::string& text) {
  const size_t colon = text.find(':'), equals = text.find('=');
  const std::string name = text.substr(0, colon);
  std::vector<std::string> known;
  for (const RewriteRow& row : kRows) known.emplace_back(row.name);
  const auto row = std::ranges::find(kRows, name, &RewriteRow::name);
  if (row == kRows.end()) {
    throw InputError(fmt::format("rewrite '{}': no rewrite '{}'", text, name),
                     did_you_mean(name, known));
  }
  const std::string id =
      colon == std::string::npos ? "" : text.substr(colon + 1, equals - colon - 1);
  const auto node = std::ranges::find(forward.nodes, id, &Node::id);
  if (node == forward.nodes.end()) {
    throw InputError(fmt::format("rewrite '{}': {} has no node '{}'", text, forward.name, id),
                     fmt::format("{}:NODE{}", name, row->takes_number ? "=NUMBER" : ""));
  }
  double number = 0;
  if (row->takes_number != (equals != std::string::npos)) {
    throw InputError(
        fmt::format("rewrite '{}': {} number", text, row->takes_number ? "needs a" : "takes no"),
        fmt::format("{}:NODE{}", name, row->takes_number ? "=NUMBER" : ""));
  }
  if (row->takes_number) {
    const std::string digits = text.substr(equals + 1);
    size_t read = 0;
    try {
      number = std::stod(digits, &read);
    } catch (const std::exception&) {
      read = 0;
    }
    if (read == 0 || read != digits.size() || !(number > 0 && std::isfinite(number))) {
      throw InputError(
          fmt::format("rewrite '{}': '{}': 0 < NUMBER < infinity required", text, digits));
    }
  }
  if (!row->applies(forward, *node)) {
    throw InputError(fmt::format("rewrite '{}': does not apply to {} ({})", text, id, node->op),
                     std::string(row->help));
  }
  row->apply(forward, static_cast<size_t>(node - forward.nodes.begin()), number);
}

}  // namespace

std::span<const RewriteRow> rewrites() {
  return kRows;
}

void apply_rewrites(Graph& forward, std::span<const std::string> texts) {
  for (const std::string& text : texts) apply_one(forward, text);
  if (!texts.empty()) validate(forward);
}

std::string NearRewrite::text(std::optional<double> number) const {
  const std::string of_node = fmt::format("{}:{}", row->name, node->id);
  return row->takes_number ? fmt::format("{}={}", of_node, *number) : of_node;
}

std::vector<NearRewrite> rewrites_near(const Graph& forward, std::string_view node, int depth) {
  std::vector<NearRewrite> found;
  std::set<std::string> seen;
  std::vector<const Node*> now;
  const auto first = std::ranges::find(forward.nodes, node, &Node::id);
  if (first != forward.nodes.end()) now.push_back(&*first);
  for (int d = 0; d <= depth && !now.empty(); ++d) {
    std::vector<const Node*> before;
    for (const Node* one : now) {
      if (!seen.insert(one->id).second) continue;
      for (const RewriteRow& row : kRows) {
        if (row.applies(forward, *one)) found.push_back({&row, one});
      }
      for (const std::string& input : one->inputs) {
        const Node* producer = forward.producer_of(input);
        if (producer != nullptr) before.push_back(producer);
      }
    }
    now = std::move(before);
  }
  return found;
}

std::vector<NearRewrite> rewrites_after(const Graph& forward, const std::string& value) {
  std::vector<NearRewrite> found;
  std::vector<std::string> values = {value};
  for (size_t i = 0; i < values.size(); ++i) {
    for (const Node& node : forward.nodes) {
      if (node.is_backward() || std::ranges::count(node.inputs, values[i]) == 0) continue;
      if (node.op == "cast") values.push_back(output_id(node, 0));
      for (const RewriteRow& row : kRows) {
        if (row.applies(forward, node)) found.push_back({&row, &node});
      }
    }
  }
  return found;
}

}  // namespace lockstep

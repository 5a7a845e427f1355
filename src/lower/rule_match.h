// Finds the [[rule]] of a policy that applies at a place of the graph.
// Records which rules matched, so that a rule that matches nothing is an error and not ignored
// silently. Knows nothing of programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/lower/model_places.h"
#include "src/policy/policy.h"

namespace lockstep {

class RuleBook {
 public:
  RuleBook(const Policy& policy, const Graph& graph, const SiteTable& sites);

  // The compute format of a forward node, or null.
  const Format* compute(const Node& forward);
  // Whether a forward node is in an autocast-disabled region.
  bool autocast_off(const Node& forward);
  // The accumulator of a node with sums of products, or null. A backward node is also matched by
  // its forward partner's op.
  const Accumulator* accumulator(const Node& node, const std::string& forward_op);
  // The factor on gradients of a forward node's backward partners, beyond the loss scale, or 1.
  double loss_scale(const Node& forward);
  struct SiteRule {
    const Format* format = nullptr;
    std::optional<Rounding> rounding;
  };
  SiteRule at_site(int32_t site);  // -1: no rule

  // Adds one problem per rule that never matched, nor could match on another way through the model.
  void report_unused(ProblemList& problems) const;

 private:
  bool is_at(const PolicyRule& rule, const Node& node) const;
  bool is_at(const PolicyRule& rule, const Site& site) const;
  const Node* node_of(const Site& site) const;
  bool is_for_another_graph(const PolicyRule& rule) const;
  std::string hint(const PolicyRule& rule) const;

  const Policy& policy_;
  const Graph& graph_;
  const SiteTable& sites_;
  std::vector<bool> used_;
  std::optional<ModelPlaces> places_;  // if a rule has a place
};

}  // namespace lockstep

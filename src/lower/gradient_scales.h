// The factors by which a layer's gradients are scaled in addition to the loss scale.
// A rule's loss_scale applies inside the layers it matches: a gradient is multiplied where it
// enters one and divided where it leaves. Knows nothing of the loss scale itself.
#pragma once

#include <map>
#include <string>

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/lower/program_builder.h"

namespace lockstep {

class LayerScales {
 public:
  LayerScales(const Graph& graph, const SiteTable& sites, ProgramBuilder& builder)
      : graph_(graph), sites_(sites), builder_(builder) {}

  // The rules' factor for the backward partners of a forward node.
  void set_forward(const Node& forward, double scale) { scale_of_[forward.id] = scale; }
  // The factor of a backward node's results; their sites are measured with it.
  void set_backward(const Node& node, double scale);

  double of_node(const std::string& node_id) const;
  // The factor of the sum of one gradient's addends. The sum stays scaled inside a layer; that of a
  // parameter stays scaled if all its consumers agree.
  double of_join(const Node& join) const;

  // The program value that holds a gradient rescaled to this factor.
  int scaled(const std::string& gradient, double scale);
  // The same with the factor divided out, in `format`.
  int unscaled(const std::string& gradient, const Format* format);

 private:
  double of_value(const std::string& id) const { return of_node(split_value_id(id).first); }

  const Graph& graph_;
  const SiteTable& sites_;
  ProgramBuilder& builder_;
  std::map<std::string, double> scale_of_;  // by node id; absent: 1
};

}  // namespace lockstep

// See gradient_terms.h.
#include "analysis/faithful/gradient_terms.h"

#include <algorithm>

#include "src/graph/infer.h"
#include "src/graph/op.h"

namespace lockstep {

std::map<std::string, double> terms_of_gradients(const Capture& capture) {
  std::map<std::string, double> found;
  for (const Graph& graph : capture.graphs) {
    std::map<std::string, const Parameter*> of_value;
    for (const Parameter& p : graph.parameters) of_value["p:" + p.name] = &p;
    for (const Node& node : graph.nodes) {
      const auto& op = find_op(node.op).elements;
      for (const std::string& input : node.inputs) {
        const auto read = of_value.find(input);
        if (read == of_value.end()) continue;
        const Parameter& p = *read->second;
        if (op.is_view || op.copies) of_value[output_id(node, 0)] = &p;
        const Shape& shape = p.type.shape;
        // Either extent of a matrix may be that of the outputs.
        const int64_t least = shape.empty() ? 1 : std::min(shape.front(), shape.back());
        const int64_t own = shape.size() > 2 ? shape.front() : least;
        for (const TensorType& out : node.outputs) {
          double& terms = found[p.name];
          terms = std::max(terms, static_cast<double>(element_count(out.shape)) /
                                      static_cast<double>(std::max<int64_t>(own, 1)));
        }
      }
    }
  }
  return found;
}

}  // namespace lockstep

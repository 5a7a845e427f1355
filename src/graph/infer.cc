// See infer.h.
#include "src/graph/infer.h"

#include <algorithm>
#include <stdexcept>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/op.h"

namespace lockstep {

std::vector<TensorType> infer_outputs(const Node& node, std::span<const TensorType> inputs) {
  const std::string who = "node '" + node.id + "' (" + node.op + ")";
  const OpDef& def = find_op(node.op);
  ProblemList problems("graph");
  const int count = static_cast<int>(inputs.size());
  if (count < def.min_inputs || count > def.max_inputs) {
    std::string range = std::to_string(def.min_inputs);
    if (def.max_inputs != def.min_inputs) range += " to " + std::to_string(def.max_inputs);
    problems.add(who + ": has " + std::to_string(count) + " operands, must have " + range);
  }
  for (const auto& [name, value] : node.attributes) {
    if (std::find(def.attributes.begin(), def.attributes.end(), name) != def.attributes.end()) {
      continue;
    }
    std::vector<std::string> known(def.attributes.begin(), def.attributes.end());
    problems.add(who + ": attribute '" + name + "' is unknown",
                 known.empty() ? "the op has no attributes" : did_you_mean(name, known));
  }
  problems.throw_if_any();
  try {
    return def.infer(node, inputs);
  } catch (const std::logic_error& error) {  // an attribute of the wrong type
    throw InputError(who + ": " + error.what());
  }
}

}  // namespace lockstep

// Finds the mask among the outputs of an op that drops elements.
#include "src/graph/op.h"

namespace lockstep {

// The only integer output of a random op.
const TensorType* drawn_mask(const Node& node) {
  if (find_op(node.op).meaning.draws_mask == nullptr) return nullptr;
  for (const TensorType& output : node.outputs) {
    if (output.element == ElementType::kInt) return &output;
  }
  return nullptr;
}

// Aligned at the last dimension; an extent of 1, or a missing dimension, is repeated.
bool broadcasts_to(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  const size_t ahead = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1 && from[i] != to[ahead + i]) return false;
  }
  return true;
}

}  // namespace lockstep

// sum_to: the sum over all that a broadcast repeated; the transpose of broadcasting.
//
//   x (R0, K0, R1, K1, R2)  ->  y (K0, K1)       R: reduced dimensions, K: kept ones
// Neighbouring dimensions of one kind are one group. With at most one kept group the sum is one
// channel_sum; otherwise the outermost reduced group is summed first, then the next one.
#include <algorithm>

#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

struct Group {
  int64_t extent;
  bool reduced;
};

std::vector<Group> groups_of(const Shape& from, const Shape& to) {
  std::vector<Group> groups;
  const size_t missing = from.size() - to.size();
  for (size_t dim = 0; dim < from.size(); ++dim) {
    if (from[dim] == 1) continue;
    const bool reduced = dim < missing || to[dim - missing] == 1;
    if (!groups.empty() && groups.back().reduced == reduced) {
      groups.back().extent *= from[dim];
    } else {
      groups.push_back({from[dim], reduced});
    }
  }
  return groups;
}

std::vector<TensorType> infer_sum_to(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape shape = ints_attribute(node, "shape", {});
  const Shape& x = inputs[0].shape;
  require(
      shape.size() <= x.size() && broadcast_shape(node, shape, x) == x, node,
      "attribute 'shape' is " + to_string(shape) + ", must broadcast to operand 0 " + to_string(x));
  return {{shape}};
}

// Sums over the outermost reduced group: (P, R, I) -> (P, I). Returns the result.
template <typename T>
std::vector<T> peel(const OpCall& call, const T* x, std::vector<Group>& groups) {
  const auto first = std::find_if(groups.begin(), groups.end(), [](Group g) { return g.reduced; });
  int64_t outer = 1, inner = 1;
  for (auto g = groups.begin(); g != first; ++g) outer *= g->extent;
  for (auto g = first + 1; g != groups.end(); ++g) inner *= g->extent;
  const int64_t count = first->extent;
  std::vector<T> y(static_cast<size_t>(outer * inner));
  for (int64_t p = 0; p < outer; ++p) {
    call.kernels.of<T>().channel_sum(x + p * count * inner, y.data() + p * inner, count, inner, 1,
                                     call.reduce_accumulator);
  }
  groups.erase(first);
  return y;
}

void run_sum_to(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    std::vector<Group> groups = groups_of(input_shape(call, 0), output_shape(call, 0));
    const T* x = input<T>(call, 0);
    T* y = output<T>(call, 0);
    const auto is_kept = [](Group g) { return !g.reduced; };
    const auto is_reduced = [](Group g) { return g.reduced; };
    std::vector<T> partial;
    while (std::count_if(groups.begin(), groups.end(), is_kept) > 1 &&
           std::any_of(groups.begin(), groups.end(), is_reduced)) {
      partial = peel(call, x, groups);
      x = partial.data();
      std::vector<Group> merged;
      for (const Group g : groups) {
        if (!merged.empty() && merged.back().reduced == g.reduced) {
          merged.back().extent *= g.extent;
        } else {
          merged.push_back(g);
        }
      }
      groups = merged;
    }
    if (std::none_of(groups.begin(), groups.end(), is_reduced)) {
      std::copy_n(x, call.outputs[0]->size(), y);
      return;
    }
    int64_t outer = 1, channels = 1, inner = 1;  // at most one kept group is left
    for (const Group g : groups) {
      if (!g.reduced) {
        channels = g.extent;
        outer = inner;
        inner = 1;
      } else {
        inner *= g.extent;
      }
    }
    call.kernels.of<T>().channel_sum(x, y, outer, channels, inner, call.reduce_accumulator);
  });
}

}  // namespace

std::vector<OpDef> sum_to_ops() {
  return {{.name = "sum_to",
           .help = "y = x summed over the elements that broadcasting `shape` to x's shape repeats",
           .source = "torch.Tensor.sum_to_size, as autograd applies it to broadcast operands",
           .attributes = {"shape"},
           .infer = infer_sum_to,
           .run = run_sum_to,
           .elements = {.may_vanish = true}}};
}

}  // namespace lockstep

// Broadcasting by numpy's rule: shapes are aligned at their last dimension, and an extent of 1 (or
// a missing dimension) is repeated. Gradients are summed back by sum_to. For ops/*.cc alone.
#pragma once

#include <algorithm>
#include <vector>

#include "src/core/chunks.h"
#include "src/graph/autodiff.h"
#include "src/graph/op.h"

namespace lockstep {

// The common shape. Throws: InputError naming the node when two extents differ and neither is 1.
Shape broadcast_shape(const Node& node, const Shape& a, const Shape& b);

// The elements of x (shape `from`) repeated to shape `to`: x itself if nothing is repeated,
// otherwise `storage`, which is filled. Requires: `from` broadcasts to `to`.
template <typename T>
const T* expand(const KernelSet& kernels, const T* x, const Shape& from, const Shape& to,
                std::vector<T>& storage);

// Whether an operand is read again for every repetition, instead of being copied: all of it is
// repeated, one copy after the other (its last dimensions are those of `to`, the others 1), and it
// is so large that the calls take less time than a copy.
bool is_read_again(const Shape& from, const Shape& to);
// Calls body(begin) for every repetition of `size` elements among `count`. Few of them run one
// after the other, so that the kernels inside can use all threads.
template <typename Body>
void for_repetitions(int64_t size, int64_t count, Body body) {
  const int64_t pieces = count / size;
  if (count <= kElementGrain || pieces < thread_count()) {
    for (int64_t piece = 0; piece < pieces; ++piece) body(piece * size);
    return;
  }
  parallel_for(pieces, [&](int64_t piece) { body(piece * size); });
}

// The vector-Jacobian product for one operand of a broadcasting op. `gradient` is the gradient of
// the repeated operand; adds a sum_to if one is needed.
void reduce_gradient(GradientBuilder& builder, const Node& node, size_t operand,
                     const std::string& gradient);

// The operands of a function of two numbers: two, or one and the number `scalar`. That number has
// the type in which the op computes, like Python's numbers in torch.
std::vector<TensorType> infer_binary(const Node& node, std::span<const TensorType> inputs);
bool has_scalar(const Node& node);
// OpDef::cpu_formats of mul and div: PyTorch's CPU kernels read a second operand of no dimension in
// FP32 (a first one, and both of add and sub, in the format of the other operand). Its gradient
// keeps the other operand's format.
void read_second_number_wide(const Node& node, NodeFormats& formats);
// OpDef::cpu_formats of add, sub and comparisons: PyTorch's CPU kernels read a Python number in the
// format of the tensor (those of CUDA, and of mul and div, in FP32).
void read_numbers_rounded(const Node& node, NodeFormats& formats);
// A number of the node in the format in which the op reads it.
double number_of(const OpCall& call, std::string_view name, double fallback);

// Calls kernel(a, b, y, count) on the operands, repeated to the output's shape, or on pieces of
// them. What else the kernel reads of the node begins at y's place in the output.
template <typename T, typename Kernel>
void run_binary(const OpCall& call, const T* a, const T* b, Kernel kernel) {
  T* y = call.outputs[0]->as<T>().data();
  const int64_t count = call.outputs[0]->size();
  if (b == nullptr) {
    const std::vector<T> scalar(static_cast<size_t>(std::min(count, kElementGrain)),
                                static_cast<T>(number_of(call, "scalar", 0)));
    parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
      kernel(a + begin, scalar.data(), y + begin, end - begin);
    });
  } else {
    kernel(a, b, y, count);
  }
}
template <typename T, typename Kernel>
void run_binary(const OpCall& call, Kernel kernel) {
  const Shape& shape = call.outputs[0]->shape();
  std::vector<T> storage[2];
  const T* operands[2] = {};
  // One operand repeated, the other as large as the output.
  for (size_t i = 0; call.inputs.size() == 2 && i < 2; ++i) {
    const Tensor &repeated = *call.inputs[i], &whole = *call.inputs[1 - i];
    const int64_t size = repeated.size(), count = call.outputs[0]->size();
    if (whole.size() != count || !is_read_again(repeated.shape(), shape)) continue;
    T* y = call.outputs[0]->as<T>().data();
    const T *again = repeated.as<T>().data(), *once = whole.as<T>().data();
    for_repetitions(size, count, [&](int64_t begin) {
      kernel(i == 0 ? again : once + begin, i == 0 ? once + begin : again, y + begin, size);
    });
    return;
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    operands[i] = expand(call.kernels, call.inputs[i]->as<T>().data(), call.inputs[i]->shape(),
                         shape, storage[i]);
  }
  run_binary(call, operands[0], operands[1], kernel);
}

// Passes dy to operand `operand`, whose gradient it is before sums over repetitions: dy itself, or
// a node that sums it. A parameter always gets a node, so that its gradient has its own site and
// format.
void pass_broadcast_gradient(GradientBuilder& builder, const Node& node, size_t operand,
                             const std::string& dy);
// Adds `op` on `inputs`, which gives the gradient of the repeated operand, and sums that.
void add_broadcast_gradient(GradientBuilder& builder, const Node& node, size_t operand,
                            std::string_view op, std::vector<std::string> inputs,
                            Attributes attributes = {});

}  // namespace lockstep

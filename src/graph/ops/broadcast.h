// Broadcasting by numpy's rule: shapes are aligned at their last dimension, and an extent of 1 (or
// a missing dimension) is repeated. Gradients are summed back by sum_to. For ops/*.cc alone.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "src/core/chunks.h"
#include "src/graph/autodiff.h"
#include "src/graph/op.h"
#include "src/graph/ops/op_helpers.h"

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
// Calls body(at, within, count) on every part of [begin, end) that lies in one of the repetitions
// of `size` elements: it begins at `at`, which is element `within` of the repetition. Few of them
// run one after the other, so that the kernels inside can use all threads.
template <typename Body>
void for_repetitions(int64_t size, int64_t begin, int64_t end, Body body) {
  const int64_t first = begin / size, pieces = (end + size - 1) / size - first;
  const auto run = [&](int64_t piece) {
    const int64_t start = (first + piece) * size;
    const int64_t from = std::max(begin, start), to = std::min(end, start + size);
    body(from, from - start, to - from);
  };
  if (end - begin <= kElementGrain || pieces < thread_count()) {
    for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
    return;
  }
  parallel_for(pieces, run);
}

// The vector-Jacobian product for one operand of a broadcasting op. `gradient` is the gradient of
// the repeated operand; adds a sum_to if one is needed.
void reduce_gradient(GradientBuilder& builder, const Node& node, size_t operand,
                     const std::string& gradient);

// The operands of a function of two numbers: two, or one and the number `scalar`. That number has
// the type in which the op computes, like Python's numbers in torch.
std::vector<TensorType> infer_binary(const Node& node, std::span<const TensorType> inputs);
bool has_scalar(const Node& node);
// OpFormats::on_cpu of mul and div: PyTorch's CPU kernels read a second operand of no dimension in
// FP32 (a first one, and both of add and sub, in the format of the other operand). Its gradient
// keeps the other operand's format.
void read_second_number_wide(const Node& node, NodeFormats& formats);
// OpFormats::on_cpu of add, sub and comparisons: PyTorch's CPU kernels read a Python number in the
// format of the tensor (those of CUDA, and of mul and div, in FP32).
void read_numbers_rounded(const Node& node, NodeFormats& formats);
// A number of the node in the format in which the op reads it.
double number_of(const OpCall& call, std::string_view name, double fallback);

// An operand of output 0, repeated to its shape.
template <typename T>
struct WholeOperand {
  std::shared_ptr<std::vector<T>> storage = std::make_shared<std::vector<T>>();  // of a copy
  const T* data = nullptr;
};
template <typename T>
WholeOperand<T> whole_operand(const OpCall& call, size_t index) {
  WholeOperand<T> operand;
  operand.data = expand(call.kernels, input<T>(call, index), input_shape(call, index),
                        output_shape(call, 0), *operand.storage);
  return operand;
}

// Has output 0 written by kernel(a, b, y, count) on pieces of the operands and the output, see
// fill_output(). What else the kernel reads of the node begins at y's place in the output.
template <typename T, typename Kernel>
void run_binary(const OpCall& call, Kernel kernel) {
  T* y = output<T>(call, 0);
  if (call.inputs.size() == 1) {
    const auto pieces = static_cast<size_t>(std::min(call.outputs[0]->size(), kElementGrain));
    const std::vector<T> scalar(pieces, static_cast<T>(number_of(call, "scalar", 0)));
    fill_output(call, [kernel, y, scalar, a = input<T>(call, 0)](int64_t begin, int64_t end) {
      parallel_chunks(end - begin, kElementGrain, [&](int64_t from, int64_t to) {
        kernel(a + begin + from, scalar.data(), y + begin + from, to - from);
      });
    });
    return;
  }
  // One operand repeated, the other as large as the output.
  for (size_t i = 0; i < 2; ++i) {
    const Tensor &repeated = *call.inputs[i], &whole = *call.inputs[1 - i];
    if (whole.size() != call.outputs[0]->size()) continue;
    if (!is_read_again(repeated.shape(), output_shape(call, 0))) continue;
    const T *again = input<T>(call, i), *once = input<T>(call, 1 - i);
    const int64_t size = repeated.size();
    fill_output(call, [=](int64_t begin, int64_t end) {
      for_repetitions(size, begin, end, [&](int64_t at, int64_t within, int64_t count) {
        const T *other = once + at, *piece = again + within;
        kernel(i == 0 ? piece : other, i == 0 ? other : piece, y + at, count);
      });
    });
    return;
  }
  fill_output(call, [kernel, y, a = whole_operand<T>(call, 0), b = whole_operand<T>(call, 1)](
                        int64_t begin, int64_t end) {
    kernel(a.data + begin, b.data + begin, y + begin, end - begin);
  });
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

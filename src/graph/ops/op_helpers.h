// Shared by the op files: shape-rule checks that name the node, and access to an op call's arrays.
// For ops/*.cc alone; nothing outside includes it.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/graph/autodiff.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"

namespace lockstep {

// Throws: InputError "node 'n3' (conv2d): PROBLEM (HINT)" unless `ok`.
inline void require(bool ok, const Node& node, const std::string& problem,
                    const std::string& hint = "") {
  if (!ok) throw InputError("node '" + node.id + "' (" + node.op + "): " + problem, hint);
}

// Throws: InputError unless operand `index` is floating, respectively integer.
inline void require_float(const Node& node, std::span<const TensorType> inputs, size_t index) {
  require(inputs[index].element == ElementType::kFloat, node,
          "operand " + std::to_string(index) + " is " + to_string(inputs[index]) +
              ", must be floating");
}
inline void require_int(const Node& node, std::span<const TensorType> inputs, size_t index) {
  require(inputs[index].element == ElementType::kInt, node,
          "operand " + std::to_string(index) + " is " + to_string(inputs[index]) +
              ", must be an integer tensor");
}
// Throws: InputError unless every operand is floating.
inline void require_floats(const Node& node, std::span<const TensorType> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) require_float(node, inputs, i);
}
// Throws: InputError unless operand `index` has exactly this shape; `meaning`: "(out_features)".
inline void require_shape(const Node& node, std::span<const TensorType> inputs, size_t index,
                          const Shape& shape, const std::string& meaning) {
  require(inputs[index].shape == shape, node,
          "operand " + std::to_string(index) + " is " + to_string(inputs[index].shape) +
              ", must be " + to_string(shape) + " = " + meaning);
}
inline void require_rank(const Node& node, std::span<const TensorType> inputs, size_t index,
                         size_t rank, const std::string& meaning) {
  require(inputs[index].shape.size() == rank, node,
          "operand " + std::to_string(index) + " is " + to_string(inputs[index].shape) +
              ", must have " + std::to_string(rank) + " dimensions " + meaning);
}
// Throws: InputError unless there are `count` operands; `meaning`: " for its layers".
inline void require_operand_count(const Node& node, std::span<const TensorType> inputs,
                                  size_t count, const std::string& meaning = "") {
  require(inputs.size() == count, node,
          "has " + std::to_string(inputs.size()) + " operands, must have " + std::to_string(count) +
              meaning);
}
// Throws: InputError unless x, operand 0, has a batch and channels.
inline void require_channels(const Node& node, const Shape& x) {
  require(x.size() >= 2, node, "operand 0 is " + to_string(x) + ", must be (N,C,...)");
}
inline void require_image(const Node& node, const Shape& x) {
  require(x.size() == 4, node, "the image is " + to_string(x) + ", must be (N,C,H,W)");
}

// A pair attribute, (height, width): two integers, or one for both.
inline std::vector<int64_t> pair_attribute(const Node& node, std::string_view name,
                                           std::vector<int64_t> fallback) {
  std::vector<int64_t> pair = ints_attribute(node, name, std::move(fallback));
  if (pair.size() == 1) pair.push_back(pair[0]);
  require(pair.size() == 2, node,
          "attribute '" + std::string(name) + "' has " + std::to_string(pair.size()) +
              " numbers, must have 2 (height, width)");
  return pair;
}
// Throws: InputError unless both numbers of the pair attribute are at least 1.
inline void require_positive(const Node& node, std::string_view name,
                             const std::vector<int64_t>& pair) {
  require(pair[0] >= 1 && pair[1] >= 1, node,
          "attribute '" + std::string(name) + "' is " + to_string(pair) + ", must be at least 1");
}

// The node's attributes, with the shape of operand `index` as attribute `name`: for its gradients.
inline Attributes with_operand_shape(const GradientBuilder& builder, const Node& node,
                                     const std::string& name, size_t index) {
  Attributes attributes = node.attributes;
  attributes[name] = builder.graph().type_of(node.inputs[index]).shape;
  return attributes;
}

// Calls `body` with a null pointer of the container's element type: float or double.
template <typename Body>
void dispatch(const OpCall& call, Body body) {
  if (call.outputs[0]->container() == Container::kF64) {
    body(static_cast<double*>(nullptr));
  } else {
    body(static_cast<float*>(nullptr));
  }
}
template <typename T>
const T* input(const OpCall& call, size_t index) {
  return call.inputs[index]->as<T>().data();
}
template <typename T>
T* output(const OpCall& call, size_t index) {
  return call.outputs[index]->as<T>().data();
}
// Has output 0 written, now or by the executor. `fill` may refer to the call and to values of its
// own, but not to local variables.
inline void fill_output(const OpCall& call, FillRange fill) {
  if (call.output_fill != nullptr) {
    *call.output_fill = std::move(fill);
  } else {
    fill(0, call.outputs[0]->size());
  }
}
// The same for kernel(x, y, count) with x operand 0.
template <typename T, typename Kernel>
void map_operand(const OpCall& call, Kernel kernel) {
  fill_output(call, [kernel, x = input<T>(call, 0), y = output<T>(call, 0)](
                        int64_t begin, int64_t end) { kernel(x + begin, y + begin, end - begin); });
}
// The same for kernel(x, dy, dx, count) with operands 0 and 1.
template <typename T, typename Kernel>
void map_operands(const OpCall& call, Kernel kernel) {
  fill_output(call, [kernel, x = input<T>(call, 0), dy = input<T>(call, 1),
                     dx = output<T>(call, 0)](int64_t begin, int64_t end) {
    kernel(x + begin, dy + begin, dx + begin, end - begin);
  });
}
// The format in which the accumulator reads input `index`, a factor; null if not given.
inline const Format* factor_format(const OpCall& call, size_t index) {
  return index < call.factor_formats.size() ? call.factor_formats[index] : nullptr;
}
// The format to which an op with OpFormats::rounds_inside rounds inside; null: none.
inline const Format* inner_format(const OpCall& call) {
  return call.inner_formats.empty() ? nullptr : call.inner_formats[0];
}
inline const Shape& input_shape(const OpCall& call, size_t index) {
  return call.inputs[index]->shape();
}
inline const Shape& output_shape(const OpCall& call, size_t index) {
  return call.outputs[index]->shape();
}

}  // namespace lockstep

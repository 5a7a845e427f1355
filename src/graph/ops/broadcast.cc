// See broadcast.h.
#include "src/graph/ops/broadcast.h"

#include <algorithm>

#include "emulation/format/rounding.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

// The extent of `shape` at dimension `dim` after aligning it with a shape of `rank` dimensions.
int64_t aligned_extent(const Shape& shape, size_t rank, size_t dim) {
  const size_t missing = rank - shape.size();
  return dim < missing ? 1 : shape[dim - missing];
}

}  // namespace

Shape broadcast_shape(const Node& node, const Shape& a, const Shape& b) {
  const size_t rank = std::max(a.size(), b.size());
  Shape shape(rank);
  for (size_t dim = 0; dim < rank; ++dim) {
    const int64_t x = aligned_extent(a, rank, dim), y = aligned_extent(b, rank, dim);
    require(x == y || x == 1 || y == 1, node,
            "operands " + to_string(a) + " and " + to_string(b) +
                " do not broadcast: extents aligned at the last dimension must be equal or 1");
    shape[dim] = std::max(x, y);
  }
  return shape;
}

bool is_read_again(const Shape& from, const Shape& to) {
  constexpr int64_t kLeast = 4096;
  const int64_t size = element_count(from);
  if (size < kLeast || size == element_count(to)) return false;
  size_t dim = 0;
  while (dim < to.size() && aligned_extent(from, to.size(), dim) == 1) ++dim;
  while (dim < to.size() && aligned_extent(from, to.size(), dim) == to[dim]) ++dim;
  return dim == to.size();
}

template <typename T>
const T* expand(const KernelSet& kernels, const T* x, const Shape& from, const Shape& to,
                std::vector<T>& storage) {
  if (element_count(from) == element_count(to)) return x;
  storage.resize(static_cast<size_t>(element_count(to)));
  kernels.movement<T>().strided_copy(repeating_dims(from, to), x, storage.data());
  return storage.data();
}
template const float* expand(const KernelSet&, const float*, const Shape&, const Shape&,
                             std::vector<float>&);
template const double* expand(const KernelSet&, const double*, const Shape&, const Shape&,
                              std::vector<double>&);
template const int32_t* expand(const KernelSet&, const int32_t*, const Shape&, const Shape&,
                               std::vector<int32_t>&);

void reduce_gradient(GradientBuilder& builder, const Node& node, size_t operand,
                     const std::string& gradient) {
  const Graph& graph = builder.graph();
  const Shape& shape = graph.type_of(node.inputs[operand]).shape;
  builder.add_node(node, "sum_to", {gradient}, {{"shape", shape}}, {static_cast<int>(operand)});
}

bool has_scalar(const Node& node) {
  return node.attributes.contains("scalar");
}

void read_second_number_wide(const Node&, NodeFormats& formats) {
  // Where the first operand is not cast, nothing but type promotion casts the second one.
  if (formats.operands.size() == 2 && formats.operands[0] == nullptr) formats.operands[1] = nullptr;
}

void read_numbers_rounded(const Node&, NodeFormats& formats) {
  const Format* cast = formats.operands[0];
  const Format* read = cast != nullptr ? cast : formats.stored[0];
  if (read != nullptr) formats.inner = {read};
}

double number_of(const OpCall& call, std::string_view name, double fallback) {
  const double number = double_attribute(call.node, name, fallback);
  const Format* format = inner_format(call);
  // Inner formats may also be those of another op, whose gradient this node is.
  const bool is_read_rounded = find_op(call.node.op).formats.on_cpu == read_numbers_rounded;
  if (format == nullptr || !is_read_rounded) return number;
  return round_to_format(number, *format, Rounding::kNearestEven);
}

std::vector<TensorType> infer_binary(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require(has_scalar(node) == (inputs.size() == 1), node,
          "has " + std::to_string(inputs.size()) + " operands " +
              (has_scalar(node) ? "and" : "and no") + " attribute 'scalar'",
          "two operands, or one and 'scalar'");
  if (has_scalar(node)) {
    double_attribute(node, "scalar", 0);  // its type is checked here
    return {inputs[0]};
  }
  return {{broadcast_shape(node, inputs[0].shape, inputs[1].shape)}};
}

void pass_broadcast_gradient(GradientBuilder& builder, const Node& node, size_t operand,
                             const std::string& dy) {
  const Graph& graph = builder.graph();
  const std::string& value = node.inputs[operand];
  if (graph.type_of(value) == node.outputs[0] && !graph.parameter_of(value)) {
    builder.pass_gradient(node, operand, dy);
  } else {
    reduce_gradient(builder, node, operand, dy);
  }
}

void add_broadcast_gradient(GradientBuilder& builder, const Node& node, size_t operand,
                            std::string_view op, std::vector<std::string> inputs,
                            Attributes attributes) {
  const bool same = builder.graph().type_of(node.inputs[operand]) == node.outputs[0];
  const std::string repeated = builder.add_node(node, op, std::move(inputs), std::move(attributes),
                                                {same ? static_cast<int>(operand) : -1});
  if (!same) reduce_gradient(builder, node, operand, repeated);
}

}  // namespace lockstep

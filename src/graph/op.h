// What does an op promise?
// One row per op: its shape rule, its autocast class, its gradient and its kernel call, each
// defined in ops/<op>.cc and listed once in ops/op_list.cc. Backward ops are rows too.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/kernels/flash_kernel.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/stats/accumulator_health.h"
#include "src/core/tensor.h"
#include "src/graph/cast_class.h"
#include "src/graph/ir.h"

namespace lockstep {

// What an op that draws random numbers (dropout) draws them from: equal in all lanes.
struct RandomKey {
  uint64_t seed = 0, step = 0;
  uint32_t node = 0;              // the node's place in the graph
  const Tensor* given = nullptr;  // the mask itself (a capture's), of the drawn one's shape or
                                  // one that broadcasts to it; then nothing is drawn
};

// Everything an op's kernel call needs. Inputs and outputs are in the lane's container type;
// integer tensors are kI32. Outputs arrive unrounded: the executor quantizes them afterwards.
struct OpCall {
  const Node& node;
  std::span<const Tensor* const> inputs;
  std::span<Tensor* const> outputs;
  const KernelSet& kernels;
  const Accumulator& gemm_accumulator;    // sums of products
  const Accumulator& reduce_accumulator;  // other sums
  // In which formats the accumulator reads the factors among the inputs, by index; null elsewhere.
  std::span<const Format* const> factor_formats = {};
  uint8_t* events = nullptr;  // of output 0, see GemmArgs; null when not wanted
  // Called by an op that adds something (a bias) to its sums of products, while output 0 still
  // holds the bare sums; empty when nobody wants to see them.
  std::function<void()> sums_ready = {};
  RandomKey random = {};
  // For what an op rounds between its own parts (a hidden state from one time step to the next):
  // the rounding of output 0. Without a format: the container's own, nothing to round.
  QuantizeSpec inner = {};
  // What an op rounds to inside, see OpDef::cpu_formats and rounds_parts; else empty.
  std::span<const Format* const> part_formats = {};
  // What dropout multiplies kept elements by is rounded to inner's format, too.
  bool rounds_dropout_scale = false;
  const FlashKernel* flash_kernel = &flash_kernels().front();  // of sdpa with model "flash"
  // Where not null: some outputs of the sums of products are summed again, exactly (not in the
  // truth lane, whose products are not exact in double).
  AccumulatorHealth* health = nullptr;
};

// The extents of a sum of products: `count` independent ones, C (M,N) = A (M,K) B (K,N). A
// convolution is the product that its im2col form is, and has channels, per group, beside.
struct ProductShape {
  int64_t count = 1, m = 0, n = 0, k = 0;
  int64_t in_channels = 0, out_channels = 0;
};

// The formats of a node's operands, outputs and parts in a lane. `stored`: operands as they are;
// `operands`: what each is cast to, or null; `gradients`: of the operands.
struct NodeFormats {
  const Format* low = nullptr;  // what linear's class would cast to here, or what it follows
  std::vector<const Format*> stored = {}, operands = {}, gradients = {}, outputs = {}, parts = {};
};

// Which ops round between their own parts to the format of their output 0, see OpCall.
enum class RoundsParts : uint8_t {
  kNever,
  kAlways,  // several kernels in PyTorch
  kOnCpu,   // where the policy imitates PyTorch's CPU kernel ([softmax] log)
};

// What other systems call an op, where their name for it is another one: names with blanks between
// them. One of their names may mean several ops here (interpolate).
struct ForeignNames {
  std::string_view torch = {};  // without overload
  std::string_view mxnet = {};
};

// An op whose slope jumps: the closed interval of operand 0 that ends at the jumps. Captures mark
// the elements inside, and the gates force PyTorch's choice where rounding made another.
struct Kink {
  float least = 0, most = 0;
};
// Of ops that jump at 0 and belong to the left there: x > 0.
inline Kink positive_side(const Node&) {
  return {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::infinity()};
}

// What torch.nn draws the parameters of a layer from whose op this is.
enum class FirstValues : uint8_t {
  kNone,        // there is no such layer
  kFanIn,       // uniform in +-1/sqrt(fan_in), weight and bias: kaiming_uniform with a = sqrt(5),
                // sqrt(6 / (1 + a^2) / fan_in)
  kNormal,      // standard normal
  kHidden,      // uniform in +-1/sqrt(hidden)
  kScaleShift,  // weight 1, bias 0
};

// For OpDef::draws_mask: an op that has its mask output only where it draws.
inline bool draws_where_it_has_one(const Node&) {
  return true;
}

class GradientBuilder;  // src/graph/autodiff.h: what a vector-Jacobian product may ask for

// In OpDef::output_follows: as output 0; the reduce accumulator's format (saved statistics).
inline constexpr int kFollowsOutput0 = -1, kFollowsAccumulator = -2;

struct OpDef {
  std::string_view name;
  std::string_view help;  // formula, shapes
  std::string_view source;
  CastClass cast_class = CastClass::kFollow;
  int min_inputs = 1, max_inputs = 1;
  bool has_gemm_accumulator = false;  // sums products through the gemm accumulator
  // kFollow: operands whose formats decide the output's (empty: all floating operands). E.g.
  // batch_norm follows operand 0 alone.
  std::vector<int> follow_operands = {};
  // Per output: one of kFollows..., else the operand whose format it keeps (running statistics
  // follow their buffer). An output without an entry is as output 0.
  std::vector<int> output_follows = {};
  // Where that depends on the node; null: output_follows says it. Read by output_follows_of.
  std::vector<int> (*node_follows)(const Node& node) = nullptr;
  std::vector<std::string_view> attributes = {};  // names it understands
  // Output types from operand types; throws InputError naming node, value and constraint.
  std::vector<TensorType> (*infer)(const Node& node, std::span<const TensorType> inputs);
  // Adds the backward nodes of `node`; null where no gradient flows (backward ops).
  void (*vjp)(GradientBuilder& builder, const Node& node) = nullptr;
  void (*run)(const OpCall& call);
  // Of ops with a gemm accumulator: the operands that are factors of the products, which a policy
  // with [gemm] operand (TF32) rounds. A bias is added, not multiplied.
  std::vector<int> product_operands = {0, 1};
  // Where it depends on the node which operands are factors; null: product_operands says it. The
  // first two of product_operands decide which unit of a hardware target sums in either case.
  bool (*is_factor)(const Node& node, size_t operand) = nullptr;
  // By product operand, seen as a matrix (all extents but the last; the last): the axis that its
  // products are summed over. Empty: the factors are no such matrices.
  std::vector<int> sum_axes = {};
  // Output 0, or what sums_ready shows, is the bare sums, which an accumulator site measures.
  // False: roundings lie between the sums and the outputs (a recurrent layer); there is no such
  // site.
  bool shows_sums = true;
  // Gradients may flow through outputs 0 to this - 1; the vjp asks which ones have one. 0: the op
  // ends the way of gradients, and what is computed from it alone needs none.
  int differentiable_outputs = 1;
  // Of ops with a gemm accumulator: the products they are, for advice.
  std::vector<ProductShape> (*products)(const Node& node,
                                        std::span<const TensorType> inputs) = nullptr;
  // The attribute that names output 0's format in every lane but the truth lane; its operand is
  // then read as it is, but where class_attribute says its class. Empty or absent: the cast class
  // decides.
  std::string_view format_attribute = {};
  // The attribute that names the op whose cast class this one has (src/graph/composed_ops.h). With
  // class_of_result that class decides the format of output 0 alone, and operands are read as they
  // are.
  std::string_view class_attribute = {};
  bool class_of_result = false;
  // The attribute with a number that the op itself writes into its output (a masked score's -inf).
  std::string_view fill_attribute = {};
  // Elements of the operands appear in the output, moved, scaled or added up: an infinity that the
  // graph means (a mask) is meant there, too.
  bool keeps_masks = false;
  // True: there are shapes for which it does nothing, and graphs for batches of such a shape go
  // without it: a sum over extents that are 1.
  bool may_vanish = false;
  // True: whatever the operands are stored in, the op computes in FP32 up to its outputs, products
  // included (attention that widens FP16 and BF16 first). Null: no node of it does.
  bool (*computes_wide)(const Node& node) = nullptr;
  // Where PyTorch's CPU build casts and rounds otherwise than the row says, and the policy asks for
  // that ([recurrent] cells): changes the formats in place. Backward nodes get the same parts.
  void (*cpu_formats)(const Node& node, NodeFormats& formats) = nullptr;
  // Backward nodes round their parts as the forward one does.
  RoundsParts rounds_parts = RoundsParts::kNever;
  // Bytes of an element of its integer outputs where frameworks keep them: masks 1, indices 8.
  int integer_bytes = 4;
  // A training loss. What feeds one is the model, all other forward ops are the loss: a policy's
  // [model] borders lie between them.
  bool is_loss = false;
  ForeignNames foreign_names = {};
  // The side of its kink that operand 0 stands on; null: it has none.
  Kink (*kink)(const Node& node) = nullptr;
  // The output that says which element of each plane of operand 0 was taken (a pool's winners),
  // another kind of kink; -1: none.
  int winner_output = -1;
  // Of ops that drop elements by a mask, their one integer output: whether this node draws it.
  // Null: the op has no mask.
  bool (*draws_mask)(const Node& node) = nullptr;
  // In training it normalises by the batch and moves running statistics, of which its later outputs
  // are the new ones; in evaluation it reads them.
  bool has_running_statistics = false;
  // y = operand 0 + alpha operand 1: gradients of one value are joined by it, losses added up.
  bool is_sum = false;
  FirstValues first_values = FirstValues::kNone;
};

std::span<const OpDef> ops();
const OpDef& find_op(std::string_view name);  // Throws: InputError with a did-you-mean

// OpDef::output_follows of this node.
inline std::vector<int> output_follows_of(const OpDef& op, const Node& node) {
  return op.node_follows != nullptr ? op.node_follows(node) : op.output_follows;
}

// The mask that a node of an op with draws_mask has, one of its outputs; null: it has none.
const TensorType* drawn_mask(const Node& node);
bool broadcasts_to(const Shape& from, const Shape& to);

// Attribute access with a default; throws std::logic_error on a wrong type.
int64_t int_attribute(const Node& node, std::string_view name, int64_t fallback);
double double_attribute(const Node& node, std::string_view name, double fallback);
bool bool_attribute(const Node& node, std::string_view name, bool fallback);
std::string string_attribute(const Node& node, std::string_view name, std::string fallback);
std::vector<int64_t> ints_attribute(const Node& node, std::string_view name,
                                    std::vector<int64_t> fallback);

}  // namespace lockstep

// The table of ops. Each row has a shape rule, an autocast class, a gradient and a kernel call; it
// is defined in ops/<op>.cc and listed once in ops/op_list.cc. Backward ops are rows too.
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
#include "emulation/stats/decision_stats.h"
#include "src/core/tensor.h"
#include "src/graph/cast_class.h"
#include "src/graph/ir.h"

namespace lockstep {

// The source of an op's random numbers (dropout); the same in all lanes.
struct RandomKey {
  uint64_t seed = 0, step = 0;
  uint32_t node = 0;              // the node's place in the graph
  const Tensor* given = nullptr;  // a mask (a capture's or the reference's) to use instead of
                                  // drawing one; its shape is the drawn mask's or broadcasts to it
};

// The rounding of output 0 that follows an op. An op whose output is one product, with nothing
// added to it, may have one kernel do both (run_output_product in ops/sum_samples.h).
struct OutputRounding {
  GemmRounding how;
  bool done = false;  // by the op
};

// Everything an op's kernel call needs. Inputs and outputs are in the lane's container type;
// integer tensors are kI32. Outputs leave unrounded, unless the op says otherwise in
// `output_rounding`: the executor quantizes them afterwards.
struct OpCall {
  const Node& node;
  std::span<const Tensor* const> inputs;
  std::span<Tensor* const> outputs;
  const KernelSet& kernels;
  const Accumulator& gemm_accumulator;    // sums of products
  const Accumulator& reduce_accumulator;  // other sums
  // The formats in which the accumulator reads the factors, by input index; null for other inputs.
  std::span<const Format* const> factor_formats = {};
  uint8_t* events = nullptr;  // of output 0, see GemmArgs; null when not wanted
  // Called by an op that adds something (a bias) to its sums of products, while output 0 still
  // holds the bare sums; empty when they are not needed.
  std::function<void()> sums_ready = {};
  RandomKey random = {};
  // Null: none follows, or the values before it are needed, too.
  OutputRounding* output_rounding = nullptr;
  // Not null: instead of writing output 0, an op whose elements do not depend on each other may
  // leave here what writes it, and the executor rounds and measures every piece as soon as it is
  // written (fill_output in ops/op_helpers.h). It may refer to this call.
  FillRange* output_fill = nullptr;
  // The rounding of output 0, for values that an op rounds inside (a hidden state from one time
  // step to the next). Without a format, nothing is rounded.
  QuantizeSpec inner = {};
  // The formats to which an op rounds inside, see OpFormats; else empty.
  std::span<const Format* const> inner_formats = {};
  // Dropout also rounds the factor of kept elements to inner's format.
  bool rounds_dropout_scale = false;
  int cpu_threads = 1;  // of the PyTorch whose CPU kernels the policy imitates
  const FlashKernel* flash_kernel = &flash_kernels().front();  // of sdpa with model "flash"
  // If not null, some sums of products are recomputed exactly (not in the truth lane, whose
  // products are not exact in double).
  AccumulatorHealth* health = nullptr;
  // For an op that decides (OpMeaning::decides): whether its output is the lane's own choice
  // instead of the recorded one, and, if not null, where to count the differences.
  bool decides_itself = false;
  DecisionStats* decisions = nullptr;
};

// The extents of `count` independent products, C (M,N) = A (M,K) B (K,N). A convolution has those
// of its im2col form and, in addition, its channels per group.
struct ProductShape {
  int64_t count = 1, m = 0, n = 0, k = 0;
  int64_t in_channels = 0, out_channels = 0;
};

// The formats of a node's operands, outputs and inner values in a lane. `stored`: the operands
// before casts; `operands`: the format each is cast to, or null; `gradients`: of the operands.
struct NodeFormats {
  const Format* low = nullptr;  // the format that linear's class would cast to here or follow
  std::vector<const Format*> stored = {}, operands = {}, gradients = {}, outputs = {}, inner = {};
};

// Whether an op rounds inside, to the format of its output 0 unless said otherwise; see OpCall.
enum class RoundsInside : uint8_t {
  kNever,
  kAlways,  // several kernels in PyTorch
  kOnCpu,   // where the policy imitates PyTorch's CPU kernel ([softmax] log)
  kLogits,  // to that of operand 0 before autocast widened it ([autocast] cross_entropy)
  kBias,    // before operand 2 is added ([gemm] conv_bias)
};

// Other systems' names of an op, where they differ from ours, separated by blanks. One of their
// names may mean several ops here (interpolate).
struct ForeignNames {
  std::string_view torch = {};  // without overload
  std::string_view mxnet = {};
};

// For an op whose slope jumps: the closed interval of operand 0 that ends at the jumps. Captures
// mark the elements inside; the gates force PyTorch's choice where rounding led to another.
struct Kink {
  float least = 0, most = 0;
};
// For ops that jump at 0, where 0 itself belongs to the left side: x > 0.
inline Kink positive_side(const Node&) {
  return {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::infinity()};
}

// How torch.nn initialises the parameters of the layer with this op.
enum class FirstValues : uint8_t {
  kNone,        // there is no such layer
  kFanIn,       // uniform in +-1/sqrt(fan_in), weight and bias: kaiming_uniform with a = sqrt(5),
                // sqrt(6 / (1 + a^2) / fan_in)
  kNormal,      // standard normal
  kHidden,      // uniform in +-1/sqrt(hidden)
  kScaleShift,  // weight 1, bias 0
};

// For OpMeaning::draws_mask: an op that has a mask output only if it draws the mask.
inline bool draws_where_it_has_one(const Node&) {
  return true;
}

class GradientBuilder;  // src/graph/autodiff.h: the interface for vector-Jacobian products

// In OpFormats::output_follows: the format of output 0; of the reduce accumulator (saved
// statistics).
inline constexpr int kFollowsOutput0 = -1, kFollowsAccumulator = -2;

// Sums of products.
struct OpSums {
  bool of_products =
      false;  // the op sums products through the gemm accumulator; the rest is of those
  // The operands that are factors of the products. A policy with [gemm] operand (TF32) rounds them.
  // A bias is added, not multiplied. The first two decide which unit of a hardware target sums.
  std::vector<int> operands = {0, 1};
  // For ops whose factors depend on the node; null: `operands` applies.
  bool (*is_factor)(const Node& node, size_t operand) = nullptr;
  // For each of `operands`, as a matrix (all extents but the last; the last): the axis over which
  // its products are summed. Empty: the factors are not such matrices.
  std::vector<int> axes = {};
  // True: output 0, at sums_ready if that is called, is the bare sums; an accumulator site measures
  // them. False: roundings lie between the sums and the outputs (a recurrent layer), so there is no
  // such site.
  bool are_shown = true;
  // True: hardware keeps the sums in registers between the op's products (fused attention), so no
  // library rounds them to the factors' format.
  bool are_kept = false;
  // The extents of the products, used for advice.
  std::vector<ProductShape> (*products)(const Node& node,
                                        std::span<const TensorType> inputs) = nullptr;
};

// The formats of operands and outputs.
struct OpFormats {
  // For kFollow: the operands whose formats decide the output's (empty: all floating operands).
  // batch_norm, for example, follows operand 0 alone.
  std::vector<int> follow_operands = {};
  // Per output: one of kFollows..., or the operand whose format it keeps (running statistics follow
  // their buffer). An output without an entry has the format of output 0.
  std::vector<int> output_follows = {};
  // For ops where this depends on the node; null: output_follows applies. See output_follows_of.
  std::vector<int> (*node_follows)(const Node& node) = nullptr;
  // The attribute that names output 0's format in every lane but the truth lane. The operand is
  // then read without a cast, unless class_attribute names its class. Empty or absent: the cast
  // class decides.
  std::string_view attribute = {};
  // The attribute that names the op whose cast class applies here (src/graph/composed_ops.h). With
  // class_of_result that class decides only the format of output 0, and operands are read without a
  // cast.
  std::string_view class_attribute = {};
  bool class_of_result = false;
  // True: the op computes in FP32 up to its outputs, products included, for operands of any format
  // (attention that widens FP16 and BF16 first). Null: no node of the op does.
  bool (*computes_wide)(const Node& node) = nullptr;
  // For ops that PyTorch's CPU build casts and rounds differently: changes the formats in place if
  // the policy selects that ([recurrent] cells). Backward nodes get the same inner formats.
  void (*on_cpu)(const Node& node, NodeFormats& formats) = nullptr;
  // Backward nodes round inside as the forward node does.
  RoundsInside rounds_inside = RoundsInside::kNever;
  // Bytes per element of its integer outputs in frameworks that store them: masks 1, indices 8.
  int integer_bytes = 4;
};

// Elements that come from an operand, or from an attribute.
struct OpElements {
  // The attribute with a number that the op writes into its output (a masked score's -inf).
  std::string_view fill_attribute = {};
  // The output has elements of the operands, moved, scaled or added up: an intended infinity in an
  // operand (a mask) is also intended in the output.
  bool keeps_masks = false;
  // The output shows the operand's elements with another shape: frameworks move no data.
  bool is_view = false;
  // True: output 0 before its rounding is operand 0, element by element in the same order. Where
  // the rounding changes nothing, both may share their memory, and the op does not run.
  bool copies = false;
  // True: for some shapes the op does nothing (a sum over extents that are 1), and graphs for such
  // batches omit it.
  bool may_vanish = false;
};

// What an op is to a model, where that is more than its formula.
struct OpMeaning {
  // A training loss. The ops that feed one are the model, all other forward ops are the loss; the
  // [model] borders of a policy lie between the two.
  bool is_loss = false;
  // The kink of operand 0; null: the op has none.
  Kink (*kink)(const Node& node) = nullptr;
  // The output with the element chosen from each plane of operand 0 (a pool's winners), another
  // kind of kink; -1: none.
  int winner_output = -1;
  // For ops that drop elements by a mask, their only integer output: whether this node draws it.
  // Null: the op has no mask.
  bool (*draws_mask)(const Node& node) = nullptr;
  // In training the op normalises by the batch and updates running statistics, which are its later
  // outputs; in evaluation it reads them.
  bool has_running_statistics = false;
  // y = operand 0 + alpha operand 1: joins gradients of one value, and adds up losses.
  bool is_sum = false;
  // y = operand 0 - operand 1. In this and in is_sum a small operand may have no effect.
  bool is_difference = false;
  FirstValues first_values = FirstValues::kNone;
  // The operand that has a pole: where its magnitude is pole_at, the result is infinite or NaN (a
  // divisor, the argument of a logarithm); -1: none. Findings name it when rounding put it there.
  int pole_operand = -1;
  double pole_at = 0;
  // What operand 0 is where the result is NaN though the operand is not: "negative"; empty: never.
  std::string_view outside = {};
  // The output is a recorded choice between values of operand 0, see OpCall::decisions.
  bool decides = false;
};

struct OpDef {
  std::string_view name;
  std::string_view help;  // formula, shapes
  std::string_view source;
  CastClass cast_class = CastClass::kFollow;
  int min_inputs = 1, max_inputs = 1;
  std::vector<std::string_view> attributes = {};  // the names it accepts
  // Output types from operand types; throws InputError naming node, value and constraint.
  std::vector<TensorType> (*infer)(const Node& node, std::span<const TensorType> inputs);
  // Adds the backward nodes of `node`; null where no gradient flows (backward ops).
  void (*vjp)(GradientBuilder& builder, const Node& node) = nullptr;
  void (*run)(const OpCall& call);
  // Gradients may flow through this many outputs, from output 0; the vjp checks which of them have
  // one. 0: no gradient flows through the op, and values computed from it alone need none.
  int differentiable_outputs = 1;
  ForeignNames foreign_names = {};
  // Most ops leave these as they are.
  OpSums sums = {};
  OpFormats formats = {};
  OpElements elements = {};
  OpMeaning meaning = {};
};

std::span<const OpDef> ops();
const OpDef& find_op(std::string_view name);  // Throws: InputError with a did-you-mean

// OpFormats::output_follows for this node.
inline std::vector<int> output_follows_of(const OpDef& op, const Node& node) {
  return op.formats.node_follows != nullptr ? op.formats.node_follows(node)
                                            : op.formats.output_follows;
}

// The type of a node's mask output, for ops with draws_mask; null: the node has none.
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

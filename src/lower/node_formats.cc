// The cast class decides first; formats that it leaves open follow the operands.
#include "src/lower/node_formats.h"

#include <algorithm>
#include <stdexcept>

#include "src/graph/composed_ops.h"

namespace lockstep {
namespace {

// Running statistics keep their buffer's format through an op, whatever the op's class.
bool is_state(const Node& node, const OpDef& op, size_t operand) {
  const std::vector<int> follows = output_follows_of(op, node);
  return std::find(follows.begin(), follows.end(), static_cast<int>(operand)) != follows.end();
}

bool decides(const OpDef& op, size_t operand) {
  return op.formats.follow_operands.empty() ||
         std::find(op.formats.follow_operands.begin(), op.formats.follow_operands.end(),
                   static_cast<int>(operand)) != op.formats.follow_operands.end();
}

}  // namespace

const Format* wider(const Format* a, const Format* b) {
  if (a == nullptr || contains(*b, *a)) return b;
  if (contains(*a, *b)) return a;
  return &find_format("fp32");
}

bool computes_wide(const Node& node, const OpDef& op) {
  return op.formats.computes_wide != nullptr && op.formats.computes_wide(node);
}

const Accumulator* wide_enough(const Accumulator* wanted, const Node& node, const OpDef& op,
                               const Format* compute) {
  if (compute == nullptr && computes_wide(node, op)) compute = &find_format("fp32");
  if (compute == nullptr || contains(*wanted->format, *compute)) return wanted;
  return &find_accumulator("fp32_fused");
}

// `op`: the node's, or one that replaces it.
CastClass ClassFormats::class_of(const Node& node, const OpDef& op, bool autocast) const {
  if (in_.policy.low == nullptr || !autocast) return CastClass::kFollow;
  return in_.policy.class_of(listed_name(node, op));
}

// The format that the node itself names for its output, or null. `by_class`: its class's format.
const Format* ClassFormats::own_format(const Node& node, const OpDef& op,
                                       const Format* by_class) const {
  if (op.formats.class_of_result) {
    return by_class != nullptr ? by_class : followed(node, op, formats_inside(node));
  }
  const std::string named = string_attribute(node, op.formats.attribute, "");
  if (named.empty()) return nullptr;
  // FP32 containers do not hold FP64's values, and the truth lane rounds to nothing else.
  const Format& written = find_format(named);
  return in_.container->is_fp64() || !contains(*in_.container, written) ? in_.container : &written;
}

// What a forward node and its backward partners round to inside; null: nothing.
const Format* ClassFormats::inner_format(const Node& node, const OpDef& op, const Format* compute,
                                         const Format* output) const {
  switch (op.formats.rounds_inside) {
    case RoundsInside::kNever:
      return nullptr;
    case RoundsInside::kAlways:
      return output;
    case RoundsInside::kOnCpu:
      return in_.policy.rounds_log_softmax ? output : nullptr;
    case RoundsInside::kBias:
      return in_.policy.rounds_before_conv_bias && node.inputs.size() > 2 ? output : nullptr;
    case RoundsInside::kLogits:
      return in_.policy.splits_cross_entropy && compute == nullptr ? formats_inside(node)[0]
                                                                   : nullptr;
  }
  throw std::logic_error("inner_format: unknown rule");
}

// The format of operands and output by the node's class; null: they follow the operands.
const Format* ClassFormats::class_format(const Node& node, const OpDef& op, const Format* compute,
                                         bool autocast) const {
  if (compute != nullptr) return compute;
  switch (class_of(node, op, autocast)) {
    case CastClass::kLowPrecision:
      return in_.policy.low;
    case CastClass::kFp32:
      return &find_format("fp32");
    case CastClass::kPromote: {
      const Format* widest = in_.policy.low;
      const std::vector<const Format*> formats = formats_inside(node);
      for (size_t i = 0; i < formats.size(); ++i) {
        const bool counts = !op.formats.class_of_result || decides(op, i);
        if (counts && formats[i] != nullptr) widest = wider(widest, formats[i]);
      }
      return widest;
    }
    case CastClass::kFollow:
      return nullptr;
  }
  throw std::logic_error("class_format: unknown cast class");
}

NodeFormats ClassFormats::of_forward(const Node& node, const OpDef& op, const Format* compute,
                                     bool autocast) const {
  const Format* by_class = class_format(node, op, compute, autocast);
  const Format* own = own_format(node, op, by_class);
  const bool casts_operands =
      own == nullptr || (!op.formats.class_attribute.empty() && !op.formats.class_of_result);
  const Format* target = casts_operands ? by_class : nullptr;
  const Format* first = target != nullptr ? target : followed(node, op, formats_inside(node));
  NodeFormats formats;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Format* stored = builder_.stored_format(node.inputs[i]);
    const Format* cast_to = nullptr;
    if (!is_state(node, op, i)) {
      cast_to = target != nullptr ? target : border_.format(node, node.inputs[i]);
      if (cast_to == nullptr && own == nullptr) cast_to = category_cast(node, op, i, first);
    }
    formats.stored.push_back(stored);
    formats.operands.push_back(cast_to);
    formats.gradients.push_back(cast_to != nullptr && stored != nullptr ? cast_to : stored);
  }
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    formats.outputs.push_back(k == 0 && own != nullptr ? own : output(node, op, k, compute, first));
  }
  if (op.formats.on_cpu != nullptr && in_.policy.recurrent_cells == RecurrentCells::kTorchCpu) {
    const Format* low = class_format(node, find_op("linear"), compute, autocast);
    formats.low = low != nullptr ? low : first;
    op.formats.on_cpu(node, formats);
  }
  const Format* inner = inner_format(node, op, compute, formats.outputs[0]);
  if (inner != nullptr && !contains(*inner, *in_.container)) formats.inner = {inner};
  return formats;
}

// The operands' formats as the node sees them, after the model's borders; null for integers.
std::vector<const Format*> ClassFormats::formats_inside(const Node& node) const {
  std::vector<const Format*> formats;
  for (const std::string& input : node.inputs) {
    const Format* stored = builder_.stored_format(input);
    const Format* border = stored != nullptr ? border_.format(node, input) : nullptr;
    formats.push_back(border != nullptr ? border : stored);
  }
  return formats;
}

bool ClassFormats::is_number(const Node& node, size_t operand) const {  // of no dimension
  return in_.graph.type_of(node.inputs[operand]).shape.empty();
}

const Format* ClassFormats::followed(const Node& node, const OpDef& op,
                                     const std::vector<const Format*>& operands) const {
  const Format *widest = nullptr, *widest_number = nullptr;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!decides(op, i) || operands[i] == nullptr) continue;
    const Format*& of_kind = is_number(node, i) ? widest_number : widest;
    of_kind = wider(of_kind, operands[i]);
  }
  if (widest != nullptr) return widest;
  return widest_number != nullptr ? widest_number : in_.container;
}

// A number wider than the promoted format of the operands with dimensions is read in that format.
const Format* ClassFormats::category_cast(const Node& node, const OpDef& op, size_t operand,
                                          const Format* promoted) const {
  const Format* format = builder_.stored_format(node.inputs[operand]);
  const bool is_wider = format != nullptr && !contains(*promoted, *format);
  return is_wider && decides(op, operand) && is_number(node, operand) ? promoted : nullptr;
}

const Format* ClassFormats::output(const Node& node, const OpDef& op, size_t k,
                                   const Format* compute, const Format* first) const {
  const std::vector<int> all = output_follows_of(op, node);
  const int follows = k < all.size() ? all[k] : kFollowsOutput0;
  if (follows == kFollowsAccumulator) {
    return wide_enough(in_.policy.reduce_accumulator, node, op, compute)->format;
  }
  return follows >= 0 ? builder_.stored_format(node.inputs.at(static_cast<size_t>(follows)))
                      : first;
}

}  // namespace lockstep

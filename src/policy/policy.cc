// Derived from a policy's data: the formats of one parameter, an op's cast class, label and hash.
#include "src/policy/policy.h"

#include "src/core/text_hash.h"
#include "src/graph/composed_ops.h"

namespace lockstep {

bool Policy::has_master(const Format* format) const {
  return master_weights && format == weight;
}

const Format* Policy::arithmetic_of(const Format* format) const {
  return format == weight ? optimizer_arithmetic : format;
}

const Format* Policy::state_of(const Format* format) const {
  return format == weight ? optimizer_state : format;
}

const StateCodes* Policy::codes_of(const Format* format, int64_t count) const {
  const bool is_coded = state_codes != nullptr && state_of(format)->is_fp32();
  return is_coded && state_codes->encodes(count) ? state_codes : nullptr;
}

const Format* Policy::update_of(const Format* format) const {
  const bool is_rounded = optimizer_steps == OptimizerSteps::kElementary || format != weight;
  return is_rounded ? arithmetic_of(format) : &find_format("fp32");
}

CastClass Policy::class_of(const std::string& listed_name) const {
  const auto listed = op_class.find(listed_name);
  if (listed != op_class.end()) return listed->second;
  const ComposedOp* composed = find_composed_op(listed_name);
  const bool keeps_class = composed != nullptr && composed->keeps_class;
  return unlisted && !keeps_class ? *unlisted : own_class(listed_name);
}

std::string Policy::label() const {
  return version.empty() ? name : name + ":" + version;
}

uint64_t Policy::hash() const {
  return fnv1a(text, extends_hash);
}

}  // namespace lockstep

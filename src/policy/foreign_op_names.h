// The Lockstep ops that another system's op name means.
// Cast lists keep the names of the system they come from. If Lockstep's name differs, the op's
// row gives the other one (ForeignNames). Knows nothing of what the ops do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class OpNames : uint8_t { kTorch, kMxnet };
OpNames find_op_names(const std::string& system);  // Throws: InputError with a did-you-mean

// A name may have several rows: torch's interpolate is several ops here.
struct OpName {
  std::string_view foreign;  // torch's without overload
  std::string_view lockstep;
};
std::span<const OpName> foreign_op_names(OpNames system);

// "softmax.int" -> softmax, "nll_loss" -> cross_entropy; a name without a row is unchanged.
std::vector<std::string> lockstep_op_names(OpNames system, std::string_view name);

}  // namespace lockstep

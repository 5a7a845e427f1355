// Which Lockstep op is meant by a torch op name?
// Autocast lists are kept under torch's names; this table says where Lockstep's name differs. Knows
// nothing of what the ops do.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

struct TorchOpName {
  std::string_view torch;  // without overload
  std::string_view lockstep;
};
std::span<const TorchOpName> torch_op_names();

// "softmax.int" -> "softmax", "nll_loss" -> "cross_entropy"; a name without a row is itself.
std::string lockstep_op_name(std::string_view torch_name);

}  // namespace lockstep

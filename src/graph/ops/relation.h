// The comparison that an op's name stands for. For ops/*.cc alone.
#pragma once

#include <optional>
#include <string_view>

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Nothing for a name that is no comparison's.
std::optional<Relation> find_relation(std::string_view op);

}  // namespace lockstep

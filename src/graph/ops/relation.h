// The comparison that an op's name means. For ops/*.cc alone.
#pragma once

#include <optional>
#include <string_view>

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Nothing for a name that does not mean a comparison.
std::optional<Relation> find_relation(std::string_view op);

}  // namespace lockstep

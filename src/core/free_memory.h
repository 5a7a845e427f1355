// How much memory this process can still get. Knows Linux only (/proc, control groups).
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

// Bytes: the least of what the machine has available, swap included, what its control group leaves,
// and what its limit of addresses leaves. Nothing: not known.
std::optional<int64_t> free_memory();

}  // namespace lockstep

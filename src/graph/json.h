// The IR as JSON, in the layout of captures (docs/graph-json.md). Numbers come back with
// the same bits; "inf", "-inf" and "nan" are strings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/graph/ir.h"

namespace lockstep {

inline constexpr int64_t kIrVersion = 1;  // the "ir" field

std::string to_json(const Graph& graph);
// Throws: InputError with all problems. The returned graph is valid and within the limits of ir.h,
// so a damaged graph is refused here, before anything runs it.
Graph graph_from_json(std::string_view json);

}  // namespace lockstep

// The IR as JSON: the layout captures carry (docs/graph-json.md), 17 significant digits, "inf",
// "-inf" and "nan" as strings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/graph/ir.h"

namespace lockstep {

inline constexpr int64_t kIrVersion = 1;  // the "ir" field

std::string to_json(const Graph& graph);
// Throws: InputError with all problems; the graph it returns is validated and keeps the limits of
// ir.h, so that a damaged one is found out here and not by what would run it.
Graph graph_from_json(std::string_view json);

}  // namespace lockstep

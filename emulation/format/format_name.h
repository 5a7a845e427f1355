// How are names of formats compared?
// What the names of formats and of block formats share. Knows no table.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// In lower case, with '-' for '_'.
std::string canonical_spelling(std::string_view name);

}  // namespace lockstep

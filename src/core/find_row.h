// Finding the row of a table by its name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"

namespace lockstep {

// The row of `rows` with this name. `kind` is what messages call a row, e.g. "optimizer".
// Throws: InputError "KIND 'NAME': unknown"; the hint is the nearest known name.
template <typename Rows>
const auto& find_row(std::string_view kind, std::string_view name, const Rows& rows) {
  for (const auto& row : rows) {
    if (row.name == name) return row;
  }
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  throw InputError(std::string(kind) + " '" + std::string(name) + "': unknown",
                   did_you_mean(name, names));
}

}  // namespace lockstep

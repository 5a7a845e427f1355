// Finding the row of a table by its name.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"

namespace lockstep {

template <typename Rows>
std::vector<std::string> row_names(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

// The row of `rows` with this name, or null.
template <typename Rows>
auto* find_row_or_null(std::string_view name, const Rows& rows) {
  const auto row = std::ranges::find_if(rows, [&](const auto& r) { return r.name == name; });
  return row == std::end(rows) ? nullptr : &*row;
}

// The row of `rows` with this name. Throws: InputError with this problem; the hint is the nearest
// known name.
template <typename Rows>
const auto& find_row_or_throw(std::string_view name, const Rows& rows, const std::string& problem) {
  const auto* row = find_row_or_null(name, rows);
  if (row == nullptr) throw InputError(problem, did_you_mean(name, row_names(rows)));
  return *row;
}

// The same. `kind` is what messages call a row, e.g. "optimizer"; the problem is "KIND 'NAME':
// unknown".
template <typename Rows>
const auto& find_row(std::string_view kind, std::string_view name, const Rows& rows) {
  return find_row_or_throw(name, rows, fmt::format("{} '{}': unknown", kind, name));
}

}  // namespace lockstep

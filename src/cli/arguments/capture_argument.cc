// See capture_argument.h.
#include "src/cli/arguments/capture_argument.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "src/models/model.h"

namespace lockstep {

bool is_capture(const std::string& model) {
  const std::span<const Model> known = models();
  std::error_code error;  // a name may be too long to be one
  return std::ranges::none_of(known, [&](const Model& m) { return m.name == model; }) &&
         (std::filesystem::exists(model, error) || model.find_first_of("./") != std::string::npos);
}

std::string stem_of(const std::string& model) {
  std::string stem = std::filesystem::path(model).filename().string();
  for (const std::string_view ending : {".h5", ".lscap"}) {
    if (stem.ends_with(ending)) stem.resize(stem.size() - ending.size());
  }
  return stem;
}

void refuse_captured(const std::string& capture, std::span<const OptionOnLine> options,
                     ProblemList& problems) {
  for (const auto& [row, option] : options) {
    if (option->count() == 0) continue;
    problems.add(fmt::format("{}: capture '{}' already defines this", option->get_name(), capture),
                 "leave it out");
  }
}

}  // namespace lockstep

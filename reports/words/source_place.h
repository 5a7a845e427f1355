// "model.py:12" split into file and line, for formats that link to a line of a file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

struct SourcePlace {
  std::string file;
  int line;
};
// nullopt: no file, or no line from 1 on.
std::optional<SourcePlace> source_place(std::string_view source_line);

}  // namespace lockstep

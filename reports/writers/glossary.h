// The words that reports use, from docs/glossary.md, which the program carries.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lockstep {

struct GlossaryWord {
  std::vector<std::string> forms;  // "swamping", "swamped"; the first is the entry
  std::string meaning;             // plain text
  bool is_of_reports = false;      // a page explains it where it first stands
};
std::span<const GlossaryWord> glossary();

}  // namespace lockstep

// The words that reports use, from docs/glossary.md, which the program carries.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct GlossaryWord {
  std::vector<std::string> forms;  // "swamping", "swamped"; the first is the entry
  std::string meaning;             // plain text
  bool is_of_reports = false;      // a page explains it where it first stands
};
std::span<const GlossaryWord> glossary();

// `html`: escaped text, without tags. Marks words of reports as abbreviations with their meaning,
// each word once: `explained` has a place for each entry and keeps which have been.
std::string explain_words(std::string_view html, std::vector<bool>& explained);

}  // namespace lockstep

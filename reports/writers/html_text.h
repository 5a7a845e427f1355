// Text as HTML. All text of a page passes through here, so that no name in it becomes markup.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// For element content and for quoted attributes: & < > " ' are escaped, what is not printable is
// spelled out.
std::string html_text(std::string_view text);
// `html`: escaped text, without tags. Marks words of reports as abbreviations with their meaning,
// each word once: `explained` has a place for each entry and keeps which have been.
std::string explain_words(std::string_view html, std::vector<bool>& explained);
// html_text, with text between backticks as code and words of reports explained.
std::string html_prose(std::string_view text, std::vector<bool>& explained);

}  // namespace lockstep

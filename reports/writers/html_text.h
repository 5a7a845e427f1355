// Text as HTML. All text of a page passes through here, so that no name in it becomes markup.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// For element content and for quoted attributes: & < > " ' are escaped, what is not printable is
// spelled out.
std::string html_text(std::string_view text);
// The same, with text between backticks as code and words of reports explained once
// (explain_words in glossary.h).
std::string html_prose(std::string_view text, std::vector<bool>& explained);

}  // namespace lockstep

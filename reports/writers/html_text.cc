// Escaping.
#include "reports/writers/html_text.h"

#include "reports/writers/glossary.h"
#include "src/core/text.h"

namespace lockstep {

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_prose(std::string_view text, std::vector<bool>& explained) {
  const std::vector<std::string> parts = split(text, '`');
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i % 2 == 0) {
      out += explain_words(html_text(parts[i]), explained);
    } else if (i + 1 == parts.size()) {
      out += "`" + html_text(parts[i]);  // no second backtick
    } else {
      out += "<code>" + html_text(parts[i]) + "</code>";
    }
  }
  return out;
}

}  // namespace lockstep

// Escaping.
#include "reports/writers/html_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "reports/writers/glossary.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '/' || c == '@';
}
// Whether the text goes on with a part of the same name: "layer2", "gap.h5".
bool goes_on(std::string_view text) {
  if (text.empty()) return false;
  return is_letter(text[0]) || (text[0] == '.' && text.size() > 1 && is_letter(text[1]));
}

struct Match {
  size_t at = 0, length = 0;
};
// `form` as a word of its own, also with a plural s.
std::optional<Match> find_word(std::string_view text, const std::string& form) {
  for (size_t at = text.find(form); at != std::string_view::npos; at = text.find(form, at + 1)) {
    size_t end = at + form.size();
    if (end < text.size() && text[end] == 's') ++end;
    const char before = at == 0 ? ' ' : text[at - 1];
    const bool begins = !is_letter(before) && before != '&' && before != '.';
    if (begins && !goes_on(text.substr(end))) return Match{at, end - at};
  }
  return std::nullopt;
}

}  // namespace

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

std::string explain_words(std::string_view html, std::vector<bool>& explained) {
  struct Place {
    Match match;
    size_t word = 0;
  };
  std::vector<Place> places;
  explained.resize(glossary().size());
  for (size_t i = 0; i < glossary().size(); ++i) {
    const GlossaryWord& word = glossary()[i];
    if (!word.is_of_reports || explained[i]) continue;
    for (const std::string& form : word.forms) {
      const auto match = find_word(html, form);
      if (!match) continue;
      places.push_back({*match, i});
      break;
    }
  }
  std::ranges::sort(places, {}, [](const Place& p) { return p.match.at; });
  std::string out;
  size_t done = 0;
  for (const auto& [match, word] : places) {
    if (match.at < done) continue;  // within another word's
    out += html.substr(done, match.at - done);
    out += fmt::format("<abbr title=\"{}\">{}</abbr>", html_text(glossary()[word].meaning),
                       html.substr(match.at, match.length));
    explained[word] = true;
    done = match.at + match.length;
  }
  return out + std::string(html.substr(done));
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

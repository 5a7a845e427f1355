// Reads the rows of the table, "| **word**, other form | meaning | where |".
#include "reports/writers/glossary.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "reports/writers/html_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

struct Page {
  std::string_view name, text;
};
const Page kPages[] = {
#include "embedded_glossary.inc"
};

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// Without Markdown: emphasis goes, of a link its text stays. Code stays as it is.
std::string plain_text(std::string_view markdown) {
  std::string out;
  bool in_code = false;
  for (size_t i = 0; i < markdown.size(); ++i) {
    const char c = markdown[i];
    in_code = in_code != (c == '`');
    if (!in_code && (c == '*' || c == '[')) continue;
    if (!in_code && c == ']' && i + 1 < markdown.size() && markdown[i + 1] == '(') {
      i = markdown.find(')', i);
      continue;
    }
    out += c;
  }
  return trimmed(out);
}

std::vector<GlossaryWord> read_words() {
  std::vector<GlossaryWord> words;
  for (const std::string& line : split(std::string(kPages[0].text), '\n')) {
    const std::vector<std::string> cells = split(line, '|');
    if (cells.size() < 4 || !trimmed(cells[1]).starts_with("**")) continue;
    GlossaryWord word;
    word.meaning = plain_text(cells[2]);
    for (const std::string& form : split(cells[1], ',')) word.forms.push_back(plain_text(form));
    word.is_of_reports = trimmed(cells[3]).starts_with("report");
    words.push_back(std::move(word));
  }
  return words;
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
}

struct Match {
  size_t at = 0, length = 0;
};
// `form` as a word of its own, also with a plural s.
std::optional<Match> find_word(std::string_view text, const std::string& form) {
  for (size_t at = text.find(form); at != std::string_view::npos; at = text.find(form, at + 1)) {
    size_t end = at + form.size();
    if (end < text.size() && text[end] == 's') ++end;
    const bool begins = at == 0 || (!is_letter(text[at - 1]) && text[at - 1] != '&');
    if (begins && (end == text.size() || !is_letter(text[end]))) return Match{at, end - at};
  }
  return std::nullopt;
}

}  // namespace

std::span<const GlossaryWord> glossary() {
  static const std::vector<GlossaryWord> words = read_words();
  return words;
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

}  // namespace lockstep

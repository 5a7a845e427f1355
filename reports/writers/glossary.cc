// Reads the rows of the table, "| **word**, other form | meaning | where |".
#include "reports/writers/glossary.h"

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

}  // namespace

std::span<const GlossaryWord> glossary() {
  static const std::vector<GlossaryWord> words = read_words();
  return words;
}

}  // namespace lockstep

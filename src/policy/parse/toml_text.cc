// See toml_text.h. toml++ finds the place of an error; the words are our own.
#include "src/policy/parse/toml_text.h"

#include <algorithm>
#include <sstream>

#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

// Follows keys and brackets, outside of strings and comments, as deep as they go. After the first
// mistake that toml++ would report, what is counted here does not matter any more.
class DepthScan {
 public:
  explicit DepthScan(std::string_view text) : text_(text) {}

  // 0: nowhere too deep; else the line, with the number of `parts` of its key or nested `brackets`.
  int too_deep_line() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      ++at_;
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '[' || c == '{') {
        ++brackets;
      } else if (c == ']' || c == '}') {
        --brackets;
      } else if (c == '.') {
        ++parts;
      }
      if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) parts = 1;
      if (parts > kMostTomlDepth || brackets > kMostTomlDepth) return line_;
      line_ += c == '\n';
    }
    return 0;
  }

  int parts = 1, brackets = 0;

 private:
  // "basic", 'literal', """of many lines""" or '''of many lines'''.
  void skip_string(char quote) {
    const std::string three(3, quote);
    const bool has_lines = text_.substr(at_).starts_with(three);
    at_ += has_lines ? 3 : 1;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      line_ += c == '\n';
      if (c == '\\' && quote == '"') {
        ++at_;
        line_ += at_ < text_.size() && text_[at_] == '\n';
      } else if (c == '\n' && !has_lines) {
        break;  // a mistake
      } else if (c == quote && (!has_lines || text_.substr(at_).starts_with(three))) {
        ++at_;
        // Up to two quotes may come before the three that end it.
        if (has_lines) at_ += 2;
        for (int more = 0; has_lines && more < 2 && at_ < text_.size() && text_[at_] == quote;
             ++more) {
          ++at_;
        }
        return;
      }
    }
    at_ = std::min(at_ + 1, text_.size());
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

struct Mistake {
  std::string_view told;   // part of toml++'s description
  std::string_view words;  // ours
};
// The first that applies.
constexpr Mistake kMistakes[] = {
    {"utf-8", "these bytes are not UTF-8"},
    {"end-of-file", "the text ends within a value, a key or a table's name"},
    {"unescaped control character", "the text in quotes does not end on its line"},
    {"control character", "a control character stands outside of quotes"},
    {"escape sequence", "unknown escape after \\; write \\\\ for a backslash"},
    {"surrogate", "\\u must be followed by a character's number"},
    {"hex digit", "\\u must be followed by hexadecimal digits"},
    {"cannot redefine existing table", "this table is there twice"},
    {"cannot redefine", "this key is there twice"},
    {"cannot insert", "the same name is both a value and a table"},
    {"expected '='", "= is missing after the key"},
    {"blank bare key", "the table has no name"},
    {"comma or closing", "a comma or ] is missing in the array"},
    {"closing ']', saw comma", "two commas without a value between them"},
    {"expected ']'", "] is missing after the table's name"},
    {"expected value,", "a value is missing after ="},
    {"leading zeroes", "a number must not begin with 0"},
    {"underscores", "_ in a number must stand between digits"},
    {"comment or whitespace", "something follows the value; one key takes one line"},
    {"bare key starting", "a key is missing"},
    {"keys, tables", "neither a key, a table's name nor a comment"},
    {"month", "this is no date"},
    {"day", "this is no date"},
    {"year", "this is no date"},
    {"hour", "this is no time"},
    {"minute", "this is no time"},
    {"second", "this is no time"},
};

std::string_view line_at(std::string_view text, size_t number) {
  for (; number > 1; --number) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return "";
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

// "key = fp16": the commonest mistake; toml++ takes fp16 for a misspelt false.
bool lacks_quotes(std::string_view line) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view value = line.substr(equals + 1);
  const size_t first = value.find_first_not_of(" \t");
  if (first == std::string_view::npos || value.find_first_of("\"'") != std::string_view::npos) {
    return false;
  }
  const char c = value[first];
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string_view words_for(std::string_view description, std::string_view line) {
  const auto* const row = std::ranges::find_if(kMistakes, [&](const Mistake& mistake) {
    return description.find(mistake.told) != std::string_view::npos;
  });
  const bool is_place = row != std::end(kMistakes);
  if (is_place && row->told != "end-of-file") return row->words;
  if (lacks_quotes(line)) return "a text takes quotes";
  return is_place ? row->words : "this is no number, date, true or false, and no text in quotes";
}

}  // namespace

toml::table parse_toml(std::string_view text, const std::string& who, const std::string& hint) {
  if (text.size() > kMostTomlBytes) {
    throw InputError(who + ": has " + std::to_string(text.size()) + " bytes of TOML, at most " +
                     std::to_string(kMostTomlBytes) + " allowed");
  }
  DepthScan scan(text);
  if (const int line = scan.too_deep_line(); line > 0) {
    const bool is_key = scan.parts > kMostTomlDepth;
    throw InputError(who + ": line " + std::to_string(line) +
                         (is_key ? ": a key of more than " : ": values nested more than ") +
                         std::to_string(kMostTomlDepth) + (is_key ? " parts" : " deep"),
                     hint);
  }
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto place = error.source().begin;
    const std::string_view line = line_at(text, place.line);
    constexpr size_t kShown = 80;
    throw InputError(who + ": line " + std::to_string(place.line) + ": not TOML: " +
                         std::string(words_for(error.description(), line)) + ": `" +
                         printable(line, kShown) + "`, column " + std::to_string(place.column),
                     hint);
  }
}

std::string toml_text(const toml::table& table) {
  constexpr auto kFlags =
      toml::toml_formatter::default_flags & ~toml::format_flags::allow_literal_strings;
  std::ostringstream out;
  out << toml::toml_formatter(table, kFlags) << '\n';
  return out.str();
}

}  // namespace lockstep

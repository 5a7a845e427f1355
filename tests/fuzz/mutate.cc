// See mutate.h.
#include "tests/fuzz/mutate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <span>

#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "tests/fuzz/hdf5_edits.h"

namespace lockstep::fuzz {
namespace {

// Numbers at which readers fail: limits of types, their successors, and texts that are not numbers.
constexpr std::string_view kNumbers[] = {"0",
                                         "-1",
                                         "1",
                                         "2",
                                         "-0.0",
                                         "127",
                                         "128",
                                         "255",
                                         "256",
                                         "65535",
                                         "65536",
                                         "2147483647",
                                         "2147483648",
                                         "-2147483648",
                                         "-2147483649",
                                         "4294967295",
                                         "4294967296",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "-9223372036854775808",
                                         "-9223372036854775809",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "1e308",
                                         "1e309",
                                         "-1e309",
                                         "1e-45",
                                         "1e-46",
                                         "5e-324",
                                         "3.4028235e38",
                                         "3.5e38",
                                         "0x1p-1074",
                                         "0x7f800001",
                                         "1_000",
                                         "0o777",
                                         "0b11",
                                         "+5",
                                         "1.",
                                         ".5",
                                         "1e",
                                         "0x",
                                         "inf",
                                         "-inf",
                                         "nan",
                                         "99999999999999999999999999999999",
                                         "1e99999999999",
                                         "0.1",
                                         "true",
                                         "1979-05-27",
                                         "1979-05-27T07:32:00Z",
                                         "9999-99-99"};
// Text that is hard on a terminal, a page, a table, a path or a parser.
const std::string kTexts[] = {"",
                              " ",
                              "\x1b[31mred\x1b[0m",
                              "\x1b]0;title\x07",
                              "a\nb",
                              "a\rb",
                              std::string("nul\0nul", 7),
                              "\x7f",
                              "\xc2\x9b",
                              "\xff\xfe",
                              "\xc0\xaf",
                              "\xed\xa0\x80",
                              "\xf4\x90\x80\x80",
                              "\xe2\x80\xae",
                              "\xe2\x80\xa8",
                              "\\u0000",
                              "\\ud800",
                              "\\u001b",
                              "\\x1b",
                              "\\",
                              "\"",
                              "'",
                              "\"\"\"",
                              "'''",
                              "<script>alert(1)</script>",
                              "&amp;]]>",
                              "=cmd|' /C calc'!A0",
                              "| a | b |",
                              "`x`",
                              "${PATH}",
                              "$(id)",
                              "%s%n{}{0}",
                              "../../../../etc/passwd",
                              "/dev/null",
                              "/",
                              ".",
                              "*",
                              "?*",
                              "[a-z]",
                              "layer/..%2f",
                              "#",
                              "=",
                              ",",
                              ":",
                              "@",
                              "fp32",
                              "fp16",
                              "fp64",
                              "twin",
                              "null",
                              "{}",
                              "[]"};

enum class Kind { kSpace, kWord, kText, kMark };
struct Token {
  Kind kind;
  std::string_view text;
};

// Words, quoted texts, white space, and single marks: enough of TOML, JSON and command lines.
std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '+' ||
           c == '.' || (c & 0x80) != 0;
  };
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    Kind kind = Kind::kMark;
    if (is_word(text[at])) {
      kind = Kind::kWord;
      while (end < text.size() && is_word(text[end])) ++end;
    } else if (is_space(text[at])) {
      kind = Kind::kSpace;
      while (end < text.size() && is_space(text[end])) ++end;
    } else if (text[at] == '"') {
      kind = Kind::kText;
      while (end < text.size() && text[end] != '"' && text[end] != '\n') {
        end += text[end] == '\\' ? 2 : 1;
      }
      end = std::min(end + 1, text.size());
    }
    tokens.push_back({kind, text.substr(at, end - at)});
    at = end;
  }
  return tokens;
}

std::string joined(const std::vector<Token>& tokens) {
  std::string text;
  for (const Token& token : tokens) text += token.text;
  return text;
}

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  count = std::min(count, kMostInputBytes / std::max<size_t>(text.size(), 1));
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

size_t some_count(Dice& dice) {
  if (dice.one_in(40)) return 100'000;
  if (dice.one_in(20)) return 5000;
  constexpr size_t kCounts[] = {2, 3, 17, 300};
  return kCounts[dice.below(std::size(kCounts))];
}

// The value at any depth that readers may recurse into.
std::string nested(std::string_view value, Grammar grammar, Dice& dice) {
  const size_t depth = some_count(dice);
  std::pair<std::string_view, std::string_view> around{"[", "]"};
  if (grammar == Grammar::kToml && dice.one_in(2)) around = {"{a=", "}"};
  if (grammar == Grammar::kJson && dice.one_in(2)) around = {"{\"a\":", "}"};
  if (grammar == Grammar::kWords || grammar == Grammar::kLines) around = {"(", ")"};
  return repeated(around.first, depth) + std::string(value) + repeated(around.second, depth);
}

std::string some_text(Dice& dice) {
  if (dice.one_in(8)) return repeated(dice.one_in(2) ? "x" : "\xc3\xa9", some_count(dice));
  return kTexts[dice.below(std::size(kTexts))];
}

// A value for the place of `old`, of the same kind or of another.
std::string some_value(const Token& old, Grammar grammar, Dice& dice) {
  const bool has_quotes = grammar == Grammar::kToml || grammar == Grammar::kJson;
  switch (dice.below(4)) {
    case 0:
      return std::string(kNumbers[dice.below(std::size(kNumbers))]);
    case 1: {
      const std::string text = some_text(dice);
      return has_quotes ? "\"" + text + "\"" : text;
    }
    case 2: {
      if (old.kind == Kind::kText && old.text.size() >= 2) {  // inside the quotes
        std::string text(old.text);
        text.insert(1 + dice.below(text.size() - 1), some_text(dice));
        return text;
      }
      return std::string(old.text) + std::string(kNumbers[dice.below(std::size(kNumbers))]);
    }
    default:
      return nested(old.text, grammar, dice);
  }
}

const Token* some_token(const std::vector<Token>& tokens, Dice& dice, Kind kind) {
  for (int tries = 0; tries < 8 && !tokens.empty(); ++tries) {
    const Token& token = tokens[dice.below(tokens.size())];
    if (token.kind == kind) return &token;
  }
  return nullptr;
}

std::string change_tokens(const std::string& input, Grammar grammar,
                          const std::vector<std::string>& seeds, Dice& dice) {
  std::vector<Token> tokens = tokens_of(input);
  if (tokens.empty()) return some_text(dice);
  const size_t at = dice.below(tokens.size());
  const auto here = tokens.begin() + static_cast<int64_t>(at);
  const size_t length =
      1 + dice.below(std::min<size_t>(tokens.size() - at, dice.one_in(3) ? 20 : 3));
  const auto end = here + static_cast<int64_t>(length);
  switch (dice.below(7)) {
    case 0:
      tokens.erase(here, end);
      return joined(tokens);
    case 1: {
      const std::vector<Token> copy(here, end);
      tokens.insert(end, copy.begin(), copy.end());
      return joined(tokens);
    }
    case 2:
      std::swap(tokens[at], tokens[dice.below(tokens.size())]);
      return joined(tokens);
    case 3:
    case 4: {  // a value, not the space around it
      size_t value = at;
      for (int tries = 0; tries < 8; ++tries) {
        if (tokens[value].kind == Kind::kWord || tokens[value].kind == Kind::kText) break;
        value = dice.below(tokens.size());
      }
      const std::string other = some_value(tokens[value], grammar, dice);
      tokens[value].text = other;
      return joined(tokens);
    }
    case 5: {  // a word that readers know
      const std::vector<Token> others = tokens_of(seeds[dice.below(seeds.size())]);
      const Token* other = some_token(others, dice, tokens[at].kind);
      if (other == nullptr) return input;
      tokens[at].text = other->text;
      return joined(tokens);
    }
    default: {
      const std::string many = repeated(joined({here, end}), some_count(dice));
      tokens[at].text = many;
      return joined(tokens);
    }
  }
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    lines.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return lines;
}

// Moves, drops, repeats and borrows whole lines.
std::string change_lines(const std::string& input, const std::vector<std::string>& seeds,
                         Dice& dice) {
  std::vector<std::string_view> lines = lines_of(input);
  const std::string& other = seeds[dice.below(seeds.size())];
  const std::vector<std::string_view> others = lines_of(other);
  const auto place = [&](size_t at) { return lines.begin() + static_cast<int64_t>(at); };
  std::string many;
  if (lines.empty()) return other;
  const size_t at = dice.below(lines.size());
  switch (dice.below(4)) {
    case 0:
      lines.erase(place(at));
      break;
    case 1:
      many = repeated(lines[at], some_count(dice));
      lines[at] = many;
      break;
    case 2:
      std::swap(lines[at], lines[dice.below(lines.size())]);
      break;
    default:
      if (others.empty()) return input;
      const size_t from = dice.below(others.size());
      const size_t count = 1 + dice.below(others.size() - from);
      lines.insert(place(at), others.begin() + static_cast<int64_t>(from),
                   others.begin() + static_cast<int64_t>(from + count));
  }
  std::string out;
  for (const std::string_view line : lines) out += line;
  return out;
}

// Bits, runs of zeros and ones, numbers of 1 to 8 bytes in either order, cuts.
std::string change_bytes(std::string input, Dice& dice) {
  if (input.empty()) return std::string(1 + dice.below(64), '\0');
  const size_t at = dice.below(input.size());
  switch (dice.below(6)) {
    case 0:
      input[at] = static_cast<char>(input[at] ^ (1 << dice.below(8)));
      return input;
    case 1:
      input[at] = static_cast<char>(dice.below(256));
      return input;
    case 2: {
      const size_t length = std::min<size_t>(input.size() - at, 1 + dice.below(4096));
      std::fill_n(input.begin() + static_cast<int64_t>(at), length, dice.one_in(2) ? '\0' : '\xff');
      return input;
    }
    case 3:
      return input.substr(0, at);
    case 4: {
      const size_t width = size_t{1} << dice.below(4);
      constexpr uint64_t kEdges[] = {0,
                                     1,
                                     0x7f,
                                     0x80,
                                     0xff,
                                     0x7fff,
                                     0xffff,
                                     0x7fffffff,
                                     0xffffffff,
                                     UINT64_MAX >> 1,
                                     UINT64_MAX,
                                     1 << 20,
                                     uint64_t{1} << 40};
      const uint64_t value = kEdges[dice.below(std::size(kEdges))];
      const bool is_big = dice.one_in(2);
      for (size_t i = 0; i < width && at + i < input.size(); ++i) {
        const size_t shift = 8 * (is_big ? width - 1 - i : i);
        input[at + i] = static_cast<char>(value >> shift);
      }
      return input;
    }
    default: {
      const size_t length = 1 + dice.below(std::min<size_t>(input.size() - at, 256));
      return input.insert(dice.below(input.size()), input.substr(at, length));
    }
  }
}

}  // namespace

std::string mutate(const std::string& input, Grammar grammar, const std::vector<std::string>& seeds,
                   Dice& dice) {
  std::string out = input;
  int changes = 1;
  while (changes < 8 && dice.one_in(2)) ++changes;
  for (int i = 0; i < changes; ++i) {
    if (grammar == Grammar::kEdits) {
      out = change_edits(out, seeds, dice);
    } else if (grammar == Grammar::kBytes) {
      out = change_bytes(std::move(out), dice);
    } else if (dice.one_in(12)) {
      out = change_bytes(std::move(out), dice);
    } else if (grammar != Grammar::kWords && dice.one_in(4)) {
      out = change_lines(out, seeds, dice);
    } else {
      out = change_tokens(out, grammar, seeds, dice);
    }
    if (out.size() > kMostInputBytes) out.resize(kMostInputBytes);
  }
  return out;
}

std::string input_of(const Target& target, const std::vector<std::string>& seeds, uint64_t seed,
                     uint64_t number) {
  if (number < seeds.size()) return seeds[number];
  Dice dice(fnv1a(fmt::format("{} {} {}", target.name, seed, number)));
  return mutate(dice.pick(seeds), target.grammar, seeds, dice);
}

}  // namespace lockstep::fuzz

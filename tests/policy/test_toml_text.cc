// TOML of unknown origin: limits, our own words for mistakes, and texts that come back unchanged.
#include <doctest/doctest.h>

#include <string>

#include "src/policy/parse/toml_text.h"
#include "tests/support/refusal.h"

using namespace lockstep;

namespace {

using testing::has;

std::string repeated(const std::string& part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

std::string toml_error(const std::string& text) {
  return testing::error_of([&] { parse_toml(text, "policy 'a.toml'", "see the layout"); });
}

}  // namespace

TEST_CASE("TOML that is nested too deep is refused before it is parsed") {
  constexpr int kDeep = 50'000;
  const std::string key = "line 1: a key of more than 32 parts; see the layout",
                    value = "line 1: values nested more than 32 deep; see the layout";
  CHECK(has(toml_error(repeated("a.", kDeep) + "b = 1"), key));
  CHECK(has(toml_error("[" + repeated("a.", kDeep) + "b]"), key));
  CHECK(has(toml_error("x = {" + repeated("a.", kDeep) + "b = 1}"), key));
  CHECK(has(toml_error("x = " + repeated("{a = ", kDeep) + "1"), value));
  CHECK(has(toml_error("x = " + repeated("[", kDeep)), value));
  CHECK(has(toml_error("# [\nx = \"\"\"\n[[[\n\"\"\"\n" + repeated("\"a\".", kDeep) + "b = 1"),
            "line 5: a key of more than 32 parts"));
  // As deep as allowed.
  CHECK(toml_error(repeated("a.", kMostTomlDepth - 1) + "b = 1") == "");
  CHECK(toml_error("x = " + repeated("[", kMostTomlDepth) + repeated("]", kMostTomlDepth)) == "");
}

TEST_CASE("brackets and dots in strings, comments and numbers nest nothing") {
  const std::string deep = repeated("[.", 100);
  for (const std::string& value :
       {"\"" + deep + "\"", "'" + deep + "'", "\"\"\"\n\"" + deep + "\\\"\"\"\"\"",
        "'''\n" + deep + "''''", "1 # " + deep, "[" + repeated("1.5, ", 100) + "]",
        std::string("\"\\\\\""), std::string("''"), std::string("\"\"")}) {
    CAPTURE(value);
    CHECK(toml_error("x = " + value + "\ny = 1\n") == "");
  }
}

TEST_CASE("TOML that is too long is refused") {
  CHECK(toml_error("#" + std::string(kMostTomlBytes - 1, ' ')) == "");
  CHECK(has(toml_error("#" + std::string(kMostTomlBytes, ' ')), "at most 1048576 allowed"));
}

TEST_CASE("mistakes in TOML are described in plain words, with line and column") {
  struct Case {
    std::string text, words;
  };
  const Case cases[] = {
      {"a = 1\nb = fp16", "line 2: not TOML: a text takes quotes: `b = fp16`, column "},
      {"a = true2", "a text takes quotes"},
      {"a = bf16 # x", "a text takes quotes"},
      {"[storage\na = 1", "line 1: not TOML: ] is missing after the table's name"},
      {"a = \"fp16\nb = 1", "line 1: not TOML: the text in quotes does not end on its line"},
      {"a = 1\na = 2", "line 2: not TOML: this key is there twice"},
      {"[a]\n[a]", "this table is there twice"},
      {"a \"x\"", "= is missing after the key"},
      {"a = ", "the text ends within a value"},
      {"a = \n", "a value is missing after ="},
      {"a = \"\xff\"", "these bytes are not UTF-8"},
      {"a = [1 2]", "a comma or ] is missing in the array"},
      {"a = [1,", "the text ends within"},
      {"a = 1 b = 2", "something follows the value; one key takes one line"},
      {"a = \"\\q\"", "unknown escape after \\; write \\\\ for a backslash"},
      {"a = 012", "a number must not begin with 0"},
      {"a = 2027-13-01", "this is no date"},
      {"= 1", "a key"},
  };
  for (const Case& c : cases) {
    const std::string error = toml_error(c.text);
    CAPTURE(c.text);
    CAPTURE(error);
    CHECK(has(error, c.words));
    CHECK(has(error, "policy 'a.toml': line "));
    for (const char* theirs : {"encountered", "expected", "saw", "TOML_", "prohibited"}) {
      CHECK(!has(error, theirs));
    }
  }
}

TEST_CASE("every text comes back from TOML as it was") {
  for (const std::string name :
       {"fc1", "a\nb", "a\"b", "a'b", "a\\b", "\"\"\"", "'''", "$(touch x)", "`x`", "</script>",
        "*?[", "\x1b[31m", "\x7f", "\t", "\r\n", "z\xc3\xbcrich", "a = 1 # b", "[[rule]]", ""}) {
    CAPTURE(name);
    const std::string text =
        toml_text(toml::table{{"rule", toml::array{toml::table{{"layer", name}}}}});
    CAPTURE(text);
    const toml::table read = parse_toml(text, "x");
    CHECK(read["rule"][0]["layer"].value_or(std::string("?")) == name);
    CHECK(text.find('\x1b') == std::string::npos);
  }
}

// The words that reports use, and where a page explains them.
#include <doctest/doctest.h>

#include <algorithm>

#include "reports/writers/glossary.h"
#include "reports/writers/html_text.h"

namespace lockstep {
namespace {

const GlossaryWord& word_of(const std::string& form) {
  const auto found = std::ranges::find_if(
      glossary(), [&](const GlossaryWord& w) { return std::ranges::count(w.forms, form) > 0; });
  REQUIRE(found != glossary().end());
  return *found;
}

}  // namespace

TEST_CASE("the glossary is read as plain text, with all forms of a word") {
  CHECK(glossary().size() > 60);
  CHECK(word_of("swamped").forms.front() == "swamping");
  CHECK(word_of("octave").meaning == "A factor of 2: one step of a number's exponent.");
  CHECK(word_of("octave").is_of_reports);
  CHECK_FALSE(word_of("oracle").is_of_reports);
  for (const GlossaryWord& word : glossary()) {
    CAPTURE(word.forms.front());
    CHECK(!word.meaning.empty());
    CHECK(word.meaning.find("**") == std::string::npos);
    CHECK(word.meaning.find("](") == std::string::npos);
  }
}

TEST_CASE("a word is explained where it first stands, as a whole word and outside of code") {
  std::vector<bool> explained;
  const auto prose = [&](const std::string& text) { return html_prose(text, explained); };
  const std::string octave = "<abbr title=\"A factor of 2: one step of a number&#39;s exponent.\">";
  CHECK(prose("`octave` and 3 octaves of the octave") ==
        "<code>octave</code> and 3 " + octave + "octaves</abbr> of the octave");
  CHECK(prose("an octave") == "an octave");
  explained.clear();
  CHECK(prose("octavean <octave>") == "octavean &lt;" + octave + "octave</abbr>&gt;");
  for (const std::string name : {"subenergy, oracle", "octave2.bn", "a.octave", "octave.h5",
                                 "x/octave", "octave/x", "octave@cuda"}) {
    explained.clear();
    CHECK(prose(name) == name);
  }
  CHECK(prose("An octave.") == "An " + octave + "octave</abbr>.");
}

}  // namespace lockstep

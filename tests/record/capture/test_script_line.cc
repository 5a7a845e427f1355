// The lines of a user's script as text: what is written comes back, and nothing else is read.
#include "src/capture/script_line.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "src/core/error.h"

namespace lockstep {
namespace {

TEST_CASE("lines come back as they were written") {
  const ScriptLines lines = {{.of = "optimizer eps", .at = "train.py:57", .hash = "0123abcd"},
                             {.of = "seed", .value = "7"}};
  const ScriptLines back = script_lines_from_json(to_json(lines));
  REQUIRE(back.size() == 2);
  CHECK(back[0].of == "optimizer eps");
  CHECK(back[0].at == "train.py:57");
  CHECK(back[0].hash == "0123abcd");
  CHECK(back[1].value == "7");
  CHECK(to_json(back) == to_json(lines));
  CHECK(script_lines_from_json("[]").empty());
}

TEST_CASE("text that is not such a list is refused") {
  for (const std::string text :
       {"{}", "[1]", "[{}]", R"([{"of":""}])", R"([{"of":1}])", R"([{"of":"x","at":[]}])",
        R"([{"of":"x","at":"a\u001b.py:1"}])", "["}) {
    CAPTURE(text);
    CHECK_THROWS_AS(script_lines_from_json(text), InputError);
  }
}

TEST_CASE("draws are the same where no mask and no common input differs") {
  const auto lines = [](const std::vector<std::pair<std::string, std::string>>& draws) {
    ScriptLines made = {{.of = kBatchesLine, .value = "8 of 8"}};
    for (const auto& [thing, hash] : draws) made.push_back({.of = thing, .value = hash});
    return made;
  };
  const ScriptLines both = lines({{"masks", "00"}, {"input a", "01"}, {"input b", "02"}});
  CHECK(have_same_draws(both, both));
  CHECK(have_same_draws(both, lines({{"masks", "00"}, {"input a", "01"}})));
  CHECK_FALSE(have_same_draws(both, lines({{"masks", "07"}, {"input a", "01"}})));
  CHECK_FALSE(have_same_draws(both, lines({{"masks", "00"}, {"input a", "09"}})));
  CHECK_FALSE(have_same_draws(both, lines({{"masks", "00"}, {"input c", "01"}})));
  CHECK_FALSE(have_same_draws({}, {}));  // captures of an older version
}

}  // namespace
}  // namespace lockstep

// Places of rules: their forms, and how many blocks a share is.
#include "src/policy/place.h"

#include <doctest/doctest.h>

#include "src/policy/find_policy.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

TEST_CASE("places: every form is read and written") {
  for (const char* text : {"first block", "last block", "first 2 blocks", "last 12 blocks",
                           "last 15% of blocks", "first 2.5% of blocks", "head", "first layer"}) {
    CAPTURE(text);
    CHECK(to_string(find_place(text)) == text);
  }
  CHECK(find_place("last 1 blocks").count == 1);
}

TEST_CASE("places: a share is rounded up, a count is at most all") {
  const Place share = find_place("last 15% of blocks");
  CHECK(share.blocks_of(1) == 1);
  CHECK(share.blocks_of(12) == 2);   // 1.8
  CHECK(share.blocks_of(20) == 3);   // 3 exactly, though 20 * 15 / 100 is no double
  CHECK(share.blocks_of(62) == 10);  // 9.3
  CHECK(find_place("first 100% of blocks").blocks_of(7) == 7);
  CHECK(find_place("first 3 blocks").blocks_of(2) == 2);
}

TEST_CASE("places: anything else is refused and the forms are shown") {
  for (const char* text :
       {"", "block", "third block", "last 0 blocks", "last 1.5 blocks", "last -2 blocks",
        "last 0% of blocks", "last 101% of blocks", "last 15 % of blocks", "last 15% blocks",
        "last head", "first", "last ", "last 1e3 blocks", "last nan% of blocks"}) {
    CAPTURE(text);
    const std::string problem = testing::problems_in([&] {
      parse_policy("[[rule]]\nplace = '" + std::string(text) + "'\ncompute = 'fp32'", "mine.toml");
    });
    CHECK(testing::has(problem, "line 2"));
    CHECK(testing::has(problem, "last 15% of blocks"));
  }
}

}  // namespace
}  // namespace lockstep

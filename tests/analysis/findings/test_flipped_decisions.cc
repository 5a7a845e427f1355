// Which decisions would flip, from counts written by hand.
#include "analysis/findings/flipped_decisions.h"

#include <doctest/doctest.h>

#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

using testing::chain;

std::vector<DecisionStats> at(size_t site, DecisionStats stats) {
  std::vector<DecisionStats> found(chain().sites.size());
  found[site] = stats;
  return found;
}

TEST_CASE("the place with the largest share beyond the reference's") {
  auto mine = at(1, {.count = 400, .flipped = 12, .margin_max = 0.5, .margin_sum = 1});
  mine[2] = {.count = 100, .flipped = 2, .margin_max = 0.1, .margin_sum = 0.1};
  const auto found = find_flipped_decisions(1, chain(), mine, at(0, {}));
  REQUIRE(found);
  CHECK(found->kind == FindingKind::kFlippedDecisions);
  CHECK(found->site == 1);
  CHECK(found->share == doctest::Approx(0.03));
  CHECK(found->events == 12);
  CHECK(found->events_of == 400);
  CHECK(found->value == 0.5);
  const auto other = find_flipped_decisions(1, chain(), mine, at(1, {.count = 400, .flipped = 11}));
  REQUIRE(other);
  CHECK(other->site == 2);
}

TEST_CASE("half of the ties that rounding made count") {
  const auto found = find_flipped_decisions(1, chain(), at(1, {.count = 400, .tied = 20}),
                                            at(1, {.count = 400, .tied = 2}));
  REQUIRE(found);
  CHECK(found->share == doctest::Approx(0.025));
  CHECK(found->ties == 20);
  CHECK_FALSE(find_flipped_decisions(1, chain(), at(1, {.count = 400, .tied = 20}),
                                     at(1, {.count = 400, .tied = 19})));
}

TEST_CASE("few, rare, or as many in the reference: nothing") {
  const DecisionStats twelve{.count = 400, .flipped = 12};
  CHECK_FALSE(find_flipped_decisions(1, chain(), at(1, {.count = 3, .flipped = 1}), at(0, {})));
  CHECK_FALSE(find_flipped_decisions(1, chain(), at(1, {.count = 400, .flipped = 3}), at(0, {})));
  CHECK_FALSE(find_flipped_decisions(1, chain(), at(1, twelve), at(1, twelve)));
  CHECK_FALSE(find_flipped_decisions(1, chain(), {}, {}));
}

}  // namespace
}  // namespace lockstep

// Infinities that disappear again, on a chain of five sites.
#include "analysis/findings/intended_infinities.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

TEST_CASE("a mask disappears where its reader agrees; later, where its reader is finite") {
  const SiteTable sites = testing::chain();
  const std::vector<bool> mask = {true, false, false, false, false};
  std::vector<SiteRecord> lane = testing::clean_step();
  lane[0].stats.to_infinity = 10;
  IntendedInfinities intended(sites);
  lane[1].error.err_sq = 0.5 * lane[1].error.ref_sq;
  CHECK_FALSE(intended.absorbed(/*same_weights=*/true, lane, mask)[0]);
  CHECK_FALSE(intended.absorbed(/*same_weights=*/false, lane, mask)[0]);
  lane[1].error.err_sq = 0;
  CHECK(intended.absorbed(true, lane, mask)[0]);
  lane[1].error.err_sq = 0.5 * lane[1].error.ref_sq;  // the lane has moved away
  CHECK(intended.absorbed(false, lane, mask)[0]);
  const std::vector<bool> passed_on = {true, true, false, false, false};  // to a result
  lane[2].error.err_sq = 0.5 * lane[2].error.ref_sq;
  CHECK_FALSE(intended.absorbed(false, lane, passed_on)[0]);
}

}  // namespace
}  // namespace lockstep

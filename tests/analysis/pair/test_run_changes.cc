// Matches of findings, changes of outcomes and shares: written by hand.
#include "analysis/pair/run_changes.h"

#include <doctest/doctest.h>

namespace lockstep {
namespace {

TEST_CASE("an outcome is better, worse, the same, or cannot be compared") {
  CHECK(change_of(Verdict::kBroke, Verdict::kFine) == LaneChange::kBetter);
  CHECK(change_of(Verdict::kBroke, Verdict::kStalled) == LaneChange::kBetter);
  CHECK(change_of(Verdict::kFine, Verdict::kWorse) == LaneChange::kWorse);
  CHECK(change_of(Verdict::kStalled, Verdict::kStalled) == LaneChange::kSame);
  CHECK(change_of(Verdict::kReference, Verdict::kReference) == LaneChange::kSame);
  CHECK(change_of(Verdict::kBroke, Verdict::kTooShort) == LaneChange::kNotComparable);
  CHECK(change_of(Verdict::kUnjudged, Verdict::kFine) == LaneChange::kNotComparable);
}

TEST_CASE("findings match by kind and site, in another graph by the site's label") {
  SiteTable sites, other;
  for (const std::string layer : {"a", "b"}) {
    Site site{};
    site.layer = layer;
    site.op = "linear";
    sites.sites.push_back(site);
  }
  other.sites = {sites.sites[1], sites.sites[0]};
  const std::vector<Finding> before = {{.kind = FindingKind::kOverflow, .site = 0},
                                       {.kind = FindingKind::kUnderflow, .site = 0},
                                       {.kind = FindingKind::kNoScaler, .site = -1}};
  const std::vector<Finding> after = {{.kind = FindingKind::kOverflow, .site = 1},
                                      {.kind = FindingKind::kNoScaler, .site = -1}};
  const std::vector<FindingPair> same = match_findings(before, after, sites, sites, true);
  REQUIRE(same.size() == 4);
  CHECK((same[0].before == 0 && same[0].after == -1));
  CHECK((same[1].before == 1 && same[1].after == -1));
  CHECK((same[2].before == -1 && same[2].after == 0));
  CHECK((same[3].before == 2 && same[3].after == 1));
  const std::vector<FindingPair> by_label = match_findings(before, after, sites, other, false);
  REQUIRE(by_label.size() == 3);
  CHECK((by_label[1].before == 0 && by_label[1].after == 0));
}

TEST_CASE("shares that changed, the largest change first") {
  SiteHealth lost{.steps = 1, .count = 100, .nonzero = 100, .to_zero = 50};
  SiteHealth clean{.steps = 1, .count = 100, .nonzero = 100};
  SiteHealth burst = clean;
  burst.to_infinity = 90;
  const auto row = [](const char* layer, const SiteHealth& health) {
    return LayerHealth{.layer = layer, .role = Role::kActivation, .site = 0, .worst = health};
  };
  const std::vector<ShareChange> changes =
      share_changes({row("a", lost), row("b", burst), row("c", clean)},
                    {row("a", clean), row("b", clean), row("c", clean)});
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].layer == "b");
  CHECK(changes[0].what == "to infinity or NaN");
  CHECK(changes[0].before == 0.9);
  CHECK(changes[1].layer == "a");
  CHECK(changes[1].before == 0.5);
  CHECK(changes[1].after == 0);
}

}  // namespace
}  // namespace lockstep

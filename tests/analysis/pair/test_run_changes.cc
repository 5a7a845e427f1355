// Matches of lanes and findings, changes of outcomes, policies and shares: written by hand.
#include "analysis/pair/run_changes.h"

#include <doctest/doctest.h>

namespace lockstep {
namespace {

LaneInfo lane(const std::string& name) {
  LaneInfo info;
  info.name = name;
  info.is_reference = name == "fp32";
  return info;
}

TEST_CASE("an outcome is better, worse, the same, or cannot be compared") {
  CHECK(change_of(Verdict::kBroke, Verdict::kFine) == LaneChange::kBetter);
  CHECK(change_of(Verdict::kBroke, Verdict::kStalled) == LaneChange::kBetter);
  CHECK(change_of(Verdict::kFine, Verdict::kWorse) == LaneChange::kWorse);
  CHECK(change_of(Verdict::kStalled, Verdict::kStalled) == LaneChange::kSame);
  CHECK(change_of(Verdict::kReference, Verdict::kReference) == LaneChange::kSame);
  CHECK(change_of(Verdict::kBroke, Verdict::kTooShort) == LaneChange::kNotComparable);
  CHECK(change_of(Verdict::kUnjudged, Verdict::kFine) == LaneChange::kNotComparable);
}

TEST_CASE("lanes match by name; a single candidate that is left on either side took the place") {
  const std::vector<LaneInfo> before = {lane("fp32"), lane("twin"), lane("half")};
  std::vector<LaneInfo> after = {lane("twin"), lane("fp32"), lane("fixed.toml")};
  std::vector<Match> matches = match_lanes(before, after);
  REQUIRE(matches.size() == 3);
  CHECK(matches[0].after == 1);
  CHECK(matches[1].after == 0);
  CHECK(matches[2].before == 2);
  CHECK(matches[2].after == 2);

  after.push_back(lane("other"));  // which of the two took the place is not known
  matches = match_lanes(before, after);
  REQUIRE(matches.size() == 5);
  CHECK(matches[2].before == 2);
  CHECK(matches[2].after == -1);
  CHECK(matches[4].before == -1);
  CHECK(matches[4].after == 3);

  after = {lane("fp32"), lane("twin"), lane("fp64")};  // a measure is no replacement
  CHECK(match_lanes(before, after).size() == 4);
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
  const std::vector<Match> same = match_findings(before, after, sites, sites, true);
  REQUIRE(same.size() == 4);
  CHECK((same[0].before == 0 && same[0].after == -1));
  CHECK((same[1].before == 1 && same[1].after == -1));
  CHECK((same[2].before == -1 && same[2].after == 0));
  CHECK((same[3].before == 2 && same[3].after == 1));
  const std::vector<Match> by_label = match_findings(before, after, sites, other, false);
  REQUIRE(by_label.size() == 3);
  CHECK((by_label[1].before == 0 && by_label[1].after == 0));
}

TEST_CASE("sites of another batch size are the same places, those of another network are not") {
  SiteTable before;
  Site site{};
  site.layer = "fc1";
  site.shape = {64, 10};
  before.sites = {site, site};
  SiteTable after = before;
  after.sites[1].shape = {128, 10};
  CHECK(same_places(before, after));
  after.sites[1].layer = "fc2";
  CHECK_FALSE(same_places(before, after));
  after.sites.pop_back();
  CHECK_FALSE(same_places(before, after));
}

using Lines = std::vector<std::string>;

TEST_CASE("a policy's change is the settings that differ, however they are written") {
  const PolicyChange change = policy_change(
      "name = \"a\"\n# note\n[loss_scale]\nkind = \"static\"\nscale = 1\n[sums]\nscale = 1\n",
      "name = \"b\"\nsums = {scale = 2}\nloss_scale.scale = 1\nloss_scale.kind = 'dynamic'\n");
  CHECK(change.before == Lines{"loss_scale.kind = \"static\"", "sums.scale = 1"});
  CHECK(change.after == Lines{"loss_scale.kind = \"dynamic\"", "sums.scale = 2"});
}

TEST_CASE("a policy's rules are compared in their order") {
  const std::string a = "[[rule]]\nlayer = \"a\"\ncompute = \"fp32\"\n";
  const std::string b = "[[rule]]\ncompute = \"bf16\"\nlayer = [\"b\", \"c\"]\n";
  const PolicyChange added = policy_change(b, a + b);
  CHECK(added.before.empty());
  CHECK(added.after == Lines{"rule 1: compute = \"fp32\", layer = \"a\""});
  const PolicyChange swapped = policy_change(a + b, b + a);
  CHECK(swapped.before == Lines{"rule 1: compute = \"fp32\", layer = \"a\""});
  CHECK(swapped.after == Lines{"rule 2: compute = \"fp32\", layer = \"a\""});
  const PolicyChange written_otherwise =
      policy_change(a, "[[rule]]\n  compute = 'fp32'  # note\n  layer = 'a'\n");
  CHECK(written_otherwise.before.empty());
  CHECK(written_otherwise.after.empty());
}

TEST_CASE("a policy that is no TOML is compared as a whole") {
  CHECK(policy_change("= x", "= x").before.empty());
  CHECK(policy_change("= x", "a = 1").after == Lines{"a = 1"});
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

// Which lanes, sites and parameters of two runs belong together: written by hand.
#include "analysis/pair/run_match.h"

#include <doctest/doctest.h>

#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

LaneFacts lane(const std::string& name, const std::string& policy = "") {
  return {.name = name, .engine = "software", .target = "", .policy_text = policy};
}

std::vector<int> partners(const Pairing& pairing) {
  std::vector<int> partners;
  for (size_t i = 0; i < pairing.size(); ++i) partners.push_back(pairing.after_of(i));
  return partners;
}

TEST_CASE("lanes match by name; a single candidate that is left on either side took the place") {
  const std::vector<LaneFacts> before = {lane("fp32"), lane("twin"), lane("half")};
  std::vector<LaneFacts> after = {lane("twin"), lane("fp32"), lane("fixed.toml")};
  std::vector<LanePair> pairs = match_lanes(before, after);
  REQUIRE(pairs.size() == 3);
  CHECK(pairs[0].after == 1);
  CHECK(pairs[1].after == 0);
  CHECK(pairs[2].before == 2);
  CHECK(pairs[2].after == 2);
  CHECK(pairs[2].by == PairedBy::kPlace);
  CHECK_FALSE(pairs[2].is_same_lane());

  after.push_back(lane("other"));  // which of the two took the place is not known
  pairs = match_lanes(before, after);
  REQUIRE(pairs.size() == 5);
  CHECK(pairs[2].before == 2);
  CHECK(pairs[2].after == -1);
  CHECK(pairs[4].before == -1);
  CHECK(pairs[4].after == 3);

  after = {lane("fp32"), lane("twin"), lane("fp64")};  // a measure is no replacement
  CHECK(match_lanes(before, after).size() == 4);
}

TEST_CASE("a renamed lane is found by its policy, a twin is not") {
  const std::string half = "name = \"half\"\n", other = "name = \"other\"\n";
  const std::vector<LaneFacts> before = {lane("fp32", "x"), lane("half", half), lane("b", other)};
  const std::vector<LaneFacts> after = {lane("fp32", "x"), lane("new", half), lane("more", "y"),
                                        lane("twin", other)};
  const std::vector<LanePair> pairs = match_lanes(before, after);
  REQUIRE(pairs.size() == 5);
  CHECK(pairs[1].by == PairedBy::kPolicy);
  CHECK(pairs[1].before == 1);
  CHECK(pairs[1].after == 1);
  CHECK(pairs[1].is_same_lane());
  CHECK(pairs[1].same_policy);
  CHECK(pairs[2].before == 2);
  CHECK_FALSE(pairs[2].is_pair());
}

TEST_CASE("a pair says whether policy, engine and target are the same") {
  std::vector<LaneFacts> before = {lane("a", "scale = 1\n")}, after = {lane("a", "scale = 2\n")};
  LanePair pair = match_lanes(before, after).at(0);
  CHECK_FALSE(pair.same_policy);
  CHECK(pair.policy.before == std::vector<std::string>{"scale = 1"});
  CHECK(pair.policy.after == std::vector<std::string>{"scale = 2"});
  CHECK(pair.same_engine);
  after = before;
  after[0].target = "hopper";
  pair = match_lanes(before, after).at(0);
  CHECK(pair.same_policy);
  CHECK_FALSE(pair.same_engine);
}

TEST_CASE("sites of another batch size are the same places, those of another network are not") {
  RunFacts before;
  SiteFacts site;
  site.layer = "fc1";
  site.shape = "64x10";
  before.sites = {site, site};
  RunFacts after = before;
  after.sites[1].shape = "128x10";
  CHECK(match_runs(before, after).same_places);
  after.sites[1].layer = "fc2";
  CHECK_FALSE(match_runs(before, after).same_places);
  after.sites.pop_back();
  CHECK_FALSE(match_runs(before, after).same_places);
}

TEST_CASE("sites match within a layer, then in a renamed layer, then anywhere in order") {
  const auto site = [](const std::string& layer, const std::string& op) {
    SiteFacts made;
    made.layer = layer;
    made.op = op;
    return made;
  };
  RunFacts before, after;
  before.sites = {site("a", "conv2d"), site("a", "relu"), site("b", "linear"), site("c", "add")};
  after.sites = {site("a", "conv2d"), site("a", "clamp"), site("z", "linear"), site("d", "mul"),
                 site("d", "add")};
  const RunMatch match = match_runs(before, after);
  CHECK(partners(match.sites) == std::vector<int>{0, -1, 2, 4});
  CHECK(match.sites.pair_count() == 3);
}

TEST_CASE("parameters match by name, renamed ones by shape in order") {
  RunFacts before, after;
  before.parameters = {{"w", "2x2"}, {"old.w", "3"}, {"gone", "7"}};
  after.parameters = {{"new.w", "3"}, {"w", "4x4"}};
  CHECK(partners(match_runs(before, after).parameters) == std::vector<int>{1, 0, -1});
}

TEST_CASE("entries of the environment that differ or that one run lacks") {
  const auto differences = environment_differences({{"cpu", "A"}, {"gpu", "G"}, {"os", "L"}},
                                                   {{"cpu", "B"}, {"os", "L"}, {"mpi", "M"}});
  REQUIRE(differences.size() == 3);
  CHECK(differences[0].after == "B");
  CHECK((differences[1].name == "gpu" && differences[1].after.empty()));
  CHECK((differences[2].name == "mpi" && differences[2].before.empty()));
}

TEST_CASE("a recorded run matches itself; another step graph or site is named") {
  const testing::TempDir dir;
  const RunFacts facts = facts_of(testing::record(dir.file("run.h5"), testing::small_run()));
  const RunMatch same = match_runs(facts, facts);
  CHECK(same.same_step_graph);
  CHECK_FALSE(same.other_site.has_value());
  CHECK(same.same_places);
  CHECK(same.settings.empty());
  CHECK(same.environment.empty());
  RunFacts other = facts;
  other.step_graph = "{}";
  other.site_table.sites[3].shape.push_back(1);
  CHECK_FALSE(match_runs(facts, other).same_step_graph);
  CHECK(match_runs(facts, other).other_site == 3);
}

}  // namespace
}  // namespace lockstep

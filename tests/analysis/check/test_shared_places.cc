// What two programs share, by hand: a layer whose ops and sites have partners is certain, a
// rewritten one is not.
#include "analysis/check/shared_places.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

SiteFacts made_site(const std::string& layer, const std::string& op, const std::string& role,
                    const std::string& point, const std::string& shape = "2x3") {
  SiteFacts made;
  made.layer = layer;
  made.op = op;
  made.role = role;
  made.point = point;
  made.shape = shape;
  return made;
}
NodeFacts made_node(const std::string& layer, const std::string& op) {
  NodeFacts made;
  made.layer = layer;
  made.op = op;
  return made;
}

// fc, then a softmax in the layer `attention`.
RunFacts small() {
  RunFacts run;
  run.nodes = {made_node("fc", "linear"), made_node("attention", "permute"),
               made_node("attention", "softmax")};
  run.sites = {made_site("fc", "storage", "weight", "storage"),
               made_site("fc", "linear", "activation", "output"),
               made_site("attention", "permute", "activation", "output"),
               made_site("attention", "softmax", "activation", "output"),
               made_site("fc", "optimizer", "update", "operand")};
  return run;
}

SharedPlaces places(const RunFacts& before, const RunFacts& after) {
  return shared_places(before, after, match_runs(before, after));
}

TEST_CASE("the same code: every pair is certain") {
  const SharedPlaces same = places(small(), small());
  CHECK_FALSE(same.has_changed_code);
  CHECK(same.certain == std::vector<bool>(5, true));
  CHECK(same.doubtful == std::vector<bool>(5, false));
}

TEST_CASE("an op more in a layer makes its pairs likely ones; views need equal values") {
  RunFacts after = small();
  after.nodes.insert(after.nodes.begin() + 2, made_node("attention", "mul"));
  after.sites.insert(after.sites.begin() + 3,
                     made_site("attention", "mul", "activation", "output"));
  const SharedPlaces changed = places(small(), after);
  CHECK(changed.has_changed_code);
  CHECK(changed.certain == std::vector<bool>{true, true, false, false, true});
  CHECK(changed.doubtful == std::vector<bool>{false, false, true, false, false});
}

TEST_CASE(
    "a layer's parameter stays certain where its ops were rewritten, unless its shape differs") {
  RunFacts after = small();
  after.nodes[0].op = "matmul";
  after.sites[1].op = "matmul";
  SharedPlaces changed = places(small(), after);
  CHECK(changed.has_changed_code);
  CHECK(changed.certain == std::vector<bool>{true, false, true, true, true});
  after.sites[4].shape = "6";
  CHECK_FALSE(places(small(), after).certain[4]);
}

TEST_CASE("a pair of two layers is doubtful, a renamed layer is not") {
  RunFacts after = small();
  for (NodeFacts& n : after.nodes) {
    if (n.layer == "attention") n.layer = "mixer";
  }
  for (SiteFacts& s : after.sites) {
    if (s.layer == "attention") s.layer = "mixer";
  }
  CHECK(places(small(), after).certain == std::vector<bool>(5, true));
  after.nodes[1].op = after.sites[2].op = "reshape";
  const SharedPlaces moved = places(small(), after);
  CHECK_FALSE(moved.certain[3]);
  CHECK(moved.doubtful[3]);
}

TEST_CASE("code outside of modules is one room: an op is no layer of its own") {
  RunFacts before = small();
  for (const char* op : {"reshape", "cross_entropy"}) {
    before.nodes.push_back(made_node(op, op));
    before.sites.push_back(made_site(op, op, "activation", "operand"));
  }
  RunFacts after = before;
  CHECK(places(before, after).certain == std::vector<bool>(7, true));
  after.nodes.back() = made_node("logsumexp", "logsumexp");
  after.sites.back() = made_site("logsumexp", "logsumexp", "activation", "operand");
  const SharedPlaces changed = places(before, after);
  CHECK(changed.certain == std::vector<bool>{true, true, true, true, true, false, false});
  CHECK(changed.doubtful == std::vector<bool>{false, false, false, false, false, true, false});
}

}  // namespace
}  // namespace lockstep

// One step on batches of two shapes: which nodes correspond, and graphs that do not match.
#include <doctest/doctest.h>

#include "src/core/error.h"
#include "src/graph/autodiff.h"
#include "src/graph/same_step.h"
#include "tests/graph/example_graphs.h"

namespace lockstep {
namespace {

// y = linear(x (B,T) + p (1,T)[:, :T']): a longer p is sliced; p's gradient is summed over the
// batch.
Graph positions(int64_t batch, int64_t length, std::string_view activation = "relu") {
  constexpr int64_t kLongest = 4;
  GraphBuilder b("positions");
  const Value x = b.input("x", {{batch, length}});
  Value p = b.parameter("p", {1, kLongest});
  if (length < kLongest) p = b.slice("", p, 1, 0, length);
  const Value sum =
      b.op("add", {x, b.op("expand", {p}, {{"shape", Shape{batch, length}}}, "")}, {}, "");
  const Value y = b.op(activation, {sum}, {}, "act");
  b.set_loss(b.op("mse_loss", {y, b.input("target", {{batch, length}})}, {}, ""));
  return differentiate(b.finish());
}

TEST_CASE("a graph for another shape has its nodes at the same places") {
  const Graph main = positions(3, 2), longer = positions(5, 3), same = positions(3, 2);
  CHECK(match_nodes(main, same).size() == main.nodes.size());
  const auto nodes = match_nodes(main, longer);
  REQUIRE(nodes.size() == main.nodes.size());
  for (const auto& [theirs, mine] : nodes) CHECK(longer.node(theirs).op == main.node(mine).op);
}

TEST_CASE("nodes with nothing to do may be left out, and their sites are empty") {
  const Graph main = positions(3, 2), full = positions(3, 4);  // all of p: no slice
  const auto nodes = match_nodes(main, full);
  REQUIRE(nodes.size() == full.nodes.size());
  REQUIRE(main.nodes.size() == full.nodes.size() + 2);  // slice and slice_backward
  for (const auto& [theirs, mine] : nodes) CHECK(full.node(theirs).op == main.node(mine).op);
  const SiteTable sites = make_sites(main, 1);
  const SiteTable numbered = sites_numbered_as(sites, make_sites(full, 1), nodes);
  REQUIRE(numbered.sites.size() == sites.sites.size());
  int empty_count = 0;
  for (size_t s = 0; s < sites.sites.size(); ++s) {
    const Site &mine = sites.sites[s], &theirs = numbered.sites[s];
    CHECK(theirs.id == mine.id);
    CHECK(theirs.op == mine.op);
    CHECK(theirs.role == mine.role);
    const bool is_slice = mine.op == "slice" || mine.op == "slice_backward";
    CHECK(theirs.node.empty() == is_slice);
    empty_count += theirs.node.empty() ? 1 : 0;
    if (is_in_graph(mine) && !is_slice) CHECK(nodes.at(theirs.node) == mine.node);
    if (mine.op == "relu") CHECK(theirs.shape == Shape{3, 4});
  }
  CHECK(empty_count == 4);  // operand and output of both
}

TEST_CASE("a different op, operand or parameter makes a different step") {
  const Graph main = positions(3, 2);
  CHECK_THROWS_AS(match_nodes(main, positions(3, 2, "tanh")), InputError);
  CHECK_THROWS_AS(match_nodes(positions(3, 4), main), InputError);  // the slice has no counterpart
  Graph swapped = testing::two_consumers(), plain = differentiate(swapped);
  for (Node& node : swapped.nodes) {
    if (node.op == "add") std::swap(node.inputs[0], node.inputs[1]);
  }
  CHECK_THROWS_AS(match_nodes(plain, differentiate(swapped)), InputError);
  Graph renamed = main;
  renamed.parameters[0].name.push_back('q');
  CHECK_THROWS_AS(match_nodes(main, renamed), InputError);
  Graph elsewhere = main;
  elsewhere.gradients.at("p") = elsewhere.nodes.front().id;
  CHECK_THROWS_AS(match_nodes(main, elsewhere), InputError);
}

TEST_CASE("two tables of sites: the first that has another place or shape, or that one lacks") {
  const SiteTable table = make_sites(positions(3, 2), 0);
  CHECK_FALSE(first_other_site(table, table).has_value());
  SiteTable other = table;
  other.sites[2].shape.push_back(1);
  other.sites[3].node += "x";
  CHECK(first_other_site(table, other) == 2);
  other = table;
  other.sites.pop_back();
  CHECK(first_other_site(other, table) == other.sites.size());
  other.sites[1].source_line = "elsewhere.py:1";
  CHECK(first_other_site(other, table) == other.sites.size());
}

TEST_CASE("sites of another path follow those of the main graph, once for all graphs") {
  const Graph main = positions(3, 4), other = positions(3, 4, "tanh"),
              again = positions(2, 4, "tanh");
  SiteTable table = make_sites(main, 0);
  const size_t before = table.sites.size();
  PathNodes paths(main);
  const auto nodes = paths.match(other, 1), same = paths.match(again, 2);
  const SiteTable own = make_sites(other, 0), third = make_sites(again, 0);
  add_sites(table, own, nodes);
  const size_t after = table.sites.size();
  CHECK(after > before);
  add_sites(table, third, same);
  CHECK(table.sites.size() == after);  // its nodes are those of `other`
  for (size_t i = before; i < after; ++i) {
    CHECK(table.sites[i].id == static_cast<int32_t>(i));
    CHECK(table.sites[i].op.starts_with("tanh"));
    CHECK(table.sites[i].node.starts_with("path1:"));
  }
  const SiteTable numbered = sites_numbered_as(table, own, nodes);
  REQUIRE(numbered.sites.size() == after);
  size_t present = 0;
  for (const Site& site : numbered.sites) {
    if (site.op.starts_with("relu")) CHECK(site.node.empty());  // this path has none
    present += is_in_graph(site) && !site.node.empty() ? 1 : 0;
  }
  size_t wanted = 0;
  for (const Site& site : own.sites) wanted += is_in_graph(site) ? 1 : 0;
  CHECK(present == wanted);
}

}  // namespace
}  // namespace lockstep

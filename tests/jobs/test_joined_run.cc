// Runs of small networks joined into one: every number stays where its part has it.
#include "src/jobs/joined_run.h"

#include <doctest/doctest.h>

#include <cmath>

#include "src/graph/json.h"
#include "src/record/run/run_writer.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/small_runs.h"

namespace lockstep::test {
namespace {

using testing::error_of;
using testing::TemporaryFolder;

const std::vector<std::string> kLanes = {"fp32", "pure-fp16"};

// Two steps in synced mode.
std::string record_run(const TemporaryFolder& folder, const std::string& name, uint64_t seed,
                       int64_t width = 20, const std::vector<std::string>& lanes = kLanes) {
  RunOptions options = small_run(lanes, 2);
  options.mode = LaneMode::kSynced;
  options.seed = seed;
  options.sizes["hidden1"] = static_cast<double>(width);
  options.held_out = false;
  const std::string path = folder.file(name);
  LockstepRun run(options);
  RunFileWriter writer(path, "lockstep replay", false);
  run.add_observer(&writer);
  const std::atomic<bool> stop{false};
  REQUIRE(run.run(stop));
  return path;
}

std::string join_to(const TemporaryFolder& folder, std::vector<PartRun> runs) {
  JoinedRun joined(std::move(runs));
  joined.describe("parts", "00000000000000aa");
  const std::string path = folder.file("joined.h5");
  RunFileWriter writer(path, "lockstep replay parts", true);
  joined.tell(writer);
  return path;
}

// The joined run's site of a part's, by label.
const Site* site_like(const SiteTable& sites, const std::string& group, const Site& own) {
  const std::string layer = own.layer.empty() ? group : group + "." + own.layer;
  const Site* found = nullptr;
  for (const Site& site : sites.sites) {
    const bool is_same = site.layer == layer && site.op == own.op && site.role == own.role &&
                         site.point == own.point && site.index == own.index &&
                         site.shape == own.shape;
    if (!is_same ||
        (is_storage(own) && !site.node.ends_with(own.node.substr(own.node.rfind(':') + 1))))
      continue;
    REQUIRE(found == nullptr);
    found = &site;
  }
  return found;
}

}  // namespace

TEST_CASE("each part keeps its numbers, and the losses add up") {
  const TemporaryFolder folder;
  const std::string a = record_run(folder, "a.h5", 1), b = record_run(folder, "b.h5", 2, 12);
  const std::string path =
      join_to(folder, {{"left", "step 0 rank 0", {a}}, {"right", "step 0 rank 0", {b}}});
  const RunFile joined(path), left(a), right(b);
  CHECK(joined.prove().problems.empty());
  CHECK(joined.steps() == 2);
  CHECK(joined.options().part == "left, right");
  CHECK(joined.options().capture_hash == "00000000000000aa");
  CHECK(joined.sites().sites.size() == left.sites().sites.size() + right.sites().sites.size());
  const Graph graph = graph_from_json(joined.graph_json());
  CHECK(loss_names(graph) == std::vector<std::string>{"left", "right"});
  CHECK(pass_count(graph) == 2);
  size_t compared = 0;
  for (int lane = 0; lane < 2; ++lane) {
    for (int64_t step = 0; step < 2; ++step) {
      const LaneStep all = joined.step(lane, step);
      const LaneStep one = left.step(lane, step), other = right.step(lane, step);
      CHECK(all.loss == one.loss + other.loss);
      CHECK(all.losses == std::vector<double>{one.loss, other.loss});
      for (const auto& [name, file, own] :
           {std::tuple("left", &left, &one), std::tuple("right", &right, &other)}) {
        for (const Site& site : file->sites().sites) {
          const Site* there = site_like(joined.sites(), name, site);
          CAPTURE(site.label());
          REQUIRE(there != nullptr);
          const SiteRecord& was = own->sites[static_cast<size_t>(site.id)];
          const SiteRecord& is = all.sites[static_cast<size_t>(there->id)];
          REQUIRE(is.measured == was.measured);
          REQUIRE(is.stats.bits_hash == was.stats.bits_hash);
          REQUIRE(is.stats.sum_sq == was.stats.sum_sq);
          REQUIRE(is.stats.exponent_histogram == was.stats.exponent_histogram);
          REQUIRE(is.error.err_sq == was.error.err_sq);
          REQUIRE(there->feeds.size() == site.feeds.size());
          for (size_t f = 0; f < site.feeds.size(); ++f) {
            const Site& fed = file->sites().sites[static_cast<size_t>(site.feeds[f])];
            REQUIRE(joined.sites().sites[static_cast<size_t>(there->feeds[f])].op == fed.op);
          }
          ++compared;
        }
      }
    }
  }
  CHECK(compared == 4 * joined.sites().sites.size());
}

TEST_CASE("batches of one module are steps; a part without one has none") {
  const TemporaryFolder folder;
  const std::string a = record_run(folder, "a.h5", 1), b = record_run(folder, "b.h5", 2);
  const std::string c = record_run(folder, "c.h5", 3, 12);
  const std::string path = join_to(folder, {{"left", "step 0 rank 0", {a}},
                                            {"left", "step 0 rank 1", {b}},
                                            {"right", "step 0 rank 0", {c}}});
  const RunFile joined(path);
  REQUIRE(joined.steps() == 4);
  const size_t own = RunFile(a).sites().sites.size();
  CHECK(joined.sites().sites.size() == own + RunFile(c).sites().sites.size());
  CHECK(joined.step(0, 2).loss == RunFile(b).step(0, 0).loss);
  const LaneStep last = joined.step(1, 3);
  for (const Site& site : joined.sites().sites) {
    const SiteRecord& record = last.sites[static_cast<size_t>(site.id)];
    if (site.layer.starts_with("right")) CHECK_FALSE(record.measured);
  }
}

TEST_CASE("a module of another shape, and a part of a part, have names of their own") {
  const TemporaryFolder folder;
  const std::string a = record_run(folder, "a.h5", 1), b = record_run(folder, "b.h5", 2, 12);
  const std::string path = join_to(folder, {{"expert", "step 0 rank 0", {a}},
                                            {"expert", "step 0 rank 1", {b}},
                                            {"expert.up", "step 0 rank 0", {b}}});
  CHECK(RunFile(path).options().part == "expert, expert@step 0 rank 1, expert.up (alone)");
}

TEST_CASE("lanes of one part may be in several files") {
  const TemporaryFolder folder;
  const std::string all = record_run(folder, "all.h5", 1, 20, {"fp32", "pure-fp16", "pure-bf16"});
  const std::string a = record_run(folder, "a.h5", 1, 20, {"fp32", "pure-fp16"});
  const std::string b = record_run(folder, "b.h5", 1, 20, {"fp32", "pure-bf16"});
  const std::string path = join_to(folder, {{"left", "step 0 rank 0", {a, b}}});
  const RunFile joined(path), whole(all);
  REQUIRE(joined.lanes().size() == 3);
  CHECK(joined.options().lanes == std::vector<std::string>{"fp32", "pure-fp16", "pure-bf16"});
  for (int lane = 0; lane < 3; ++lane) {
    CHECK(joined.lanes()[static_cast<size_t>(lane)].name ==
          whole.lanes()[static_cast<size_t>(lane)].name);
    const LaneStep is = joined.step(lane, 1), was = whole.step(lane, 1);
    CHECK(is.loss == was.loss);
    size_t different = 0;
    for (size_t s = 0; s < is.sites.size(); ++s) {
      different += is.sites[s].stats.bits_hash != was.sites[s].stats.bits_hash ? 1 : 0;
    }
    CHECK(different == 0);
  }
  const std::string other = record_run(folder, "other.h5", 1, 12);
  const std::string said = error_of([&] { JoinedRun({{"left", "step 0 rank 0", {a, other}}}); });
  CHECK(said.find("different steps") != std::string::npos);
}

TEST_CASE("runs with other lanes are refused") {
  const TemporaryFolder folder;
  const std::string a = record_run(folder, "a.h5", 1);
  const std::string b = record_run(folder, "b.h5", 1, 20, {"fp32", "pure-bf16"});
  const std::string said = error_of([&] {
    JoinedRun({{"left", "step 0 rank 0", {a}}, {"right", "step 0 rank 0", {b}}});
  });
  CHECK(said.find("other lanes") != std::string::npos);
}

}  // namespace lockstep::test

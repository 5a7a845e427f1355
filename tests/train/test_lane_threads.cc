// Which lanes run at the same time.
#include "src/train/lane/lane_threads.h"

#include <doctest/doctest.h>

#include "src/graph/autodiff.h"
#include "src/models/model.h"
#include "src/train/lane/lane_name.h"
#include "tests/core/meeting.h"
#include "tests/emulation/kernels/kernel_test_util.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

TEST_CASE("lanes share threads, unless there is one thread or one lane has a device") {
  const Graph graph =
      differentiate(find_model("mlp").build({2, {1, 28, 28}, 10, {{"hidden1", 4}, {"hidden2", 4}}},
                                            /*training=*/true));
  const RunOptions options = small_run({"fp32", "tf32"}, 1);
  const SiteTable sites = make_sites(graph, 1);
  const LaneContext context = make_lane_context(graph, sites, options);
  const auto share = [&](const std::string& other) {
    std::vector<std::unique_ptr<Lane>> lanes;
    for (const std::string& name : {std::string("fp32"), other}) {
      lanes.push_back(std::make_unique<Lane>(context, describe_lane(name),
                                             initial_state(find_model("mlp"), {}, graph, 1)));
    }
    return lanes_share_threads(lanes);
  };
  {
    const ThreadCountGuard two(2);
    CHECK(share("tf32"));
    CHECK(share("tf32@hopper"));
    CHECK_FALSE(share("tf32@cuda-host"));
  }
  const ThreadCountGuard one(1);
  CHECK_FALSE(share("tf32"));
}

TEST_CASE("lanes at the same time really are, and otherwise keep their order") {
  const ThreadCountGuard guard(2);
  Meeting meeting;
  for_lanes(1, 3, /*at_the_same_time=*/true, [&](size_t) { meeting.wait_for(2); });
  CHECK(!meeting.timed_out);
  std::vector<size_t> order;
  for_lanes(1, 4, /*at_the_same_time=*/false, [&](size_t lane) { order.push_back(lane); });
  CHECK(order == std::vector<size_t>{1, 2, 3});
}

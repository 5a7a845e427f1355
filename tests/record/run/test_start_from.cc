// What a run leaves for others: learning rates and norms in the file, and weights in the checkpoint
// from which another run starts.
#include <doctest/doctest.h>

#include "src/core/error.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "src/record/run/start_from.h"
#include "tests/support/folders.h"
#include "tests/train/small_runs.h"

namespace lockstep::test {
namespace {

std::string recorded_run(const RunOptions& options) {
  const std::string path = std::string(testing::kBinaryFolder) + "/test_start_from.h5";
  LockstepRun run(options);
  RunFileWriter writer(path, "test", /*overwrite=*/true);
  run.add_observer(&writer);
  const std::atomic<bool> stop{false};
  REQUIRE(run.run(stop));
  return path;
}

}  // namespace

TEST_CASE("run files hold learning rates by group, and norms if there is clipping") {
  RunOptions options = small_run({"fp32"}, 3);
  options.groups = {{"fc3", {"adamw", {{"lr", 0.5}}}}};
  options.schedule = {"linear", {{"steps", 4}}};
  options.clip_norm = 1;
  const RunFile file(recorded_run(options));
  REQUIRE(file.options().groups.size() == 1);
  CHECK(file.options().groups[0].layers == "fc3");
  const std::vector<LaneStep> course = file.course(0);
  REQUIRE(course.size() == 3);
  CHECK(course[0].lr == std::vector<double>{0.05, 0.5});
  CHECK(course[1].lr == std::vector<double>{0.05 * 0.75, 0.375});
  CHECK(course[2].lr == std::vector<double>{0.025, 0.25});
  for (const LaneStep& step : course) CHECK(step.gradient_norm > 0);
  CHECK(course[0].losses.empty());
}

TEST_CASE("start-from: a lane's weights, its masters if it has them, and refused texts") {
  const std::string policy = write_policy(
      "start_masters", "[storage]\nweight = \"bf16\"\n[optimizer]\nmaster_weights = true\n");
  const RunOptions options = small_run({"fp32", policy}, 2);
  const std::string path = recorded_run(options) + ".state";
  LockstepRun again(options);
  Recorder recorder;
  const RunState end = run(again, recorder);

  const auto reference = read_start(path);
  CHECK(reference.size() == 6);
  for (const auto& [name, tensor] : reference) {
    CHECK(tensor.same_bits(end.lanes[0].tensors.at("weight/" + name)));
  }
  const auto lane = read_start(path + ":" + policy);
  CHECK(lane.at("fc1.weight").same_bits(end.lanes[1].tensors.at("master/fc1.weight")));
  CHECK(!lane.at("fc1.weight").same_bits(end.lanes[1].tensors.at("weight/fc1.weight")));

  CHECK_THROWS_WITH_AS(read_start(path + ":tf32"), doctest::Contains("no lane 'tf32'"), InputError);
  CHECK_THROWS_WITH_AS(read_start("run.h5"), doctest::Contains("RUN.state"), InputError);
  CHECK_THROWS_WITH_AS(read_start("missing.h5.state"), doctest::Contains("no such file"),
                       InputError);
}

TEST_CASE(
    "start-from: a hash identifies the weights; a run's own checkpoints are recognised by path") {
  std::map<std::string, Tensor> start = {{"b", Tensor::from<float>({2}, {1, 2})},
                                         {"w", Tensor::from<float>({1, 2}, {3, 4})}};
  const std::string hash = start_hash(start);
  CHECK(hash.size() == 16);
  CHECK(start_hash(start) == hash);
  start["w"] = Tensor::from<float>({2, 1}, {3, 4});
  CHECK(start_hash(start) != hash);
  start["w"] = Tensor::from<float>({1, 2}, {3, 4});
  start["b"].as<float>()[1] = std::nextafter(2.0f, 3.0f);
  CHECK(start_hash(start) != hash);

  CHECK(starts_from_run("a.h5.state", "a.h5"));
  CHECK(starts_from_run("./x/../a.h5.state.1:tf32", "a.h5"));
  CHECK(!starts_from_run("b.h5.state:a.h5.state", "a.h5"));
  CHECK(!starts_from_run("x/a.h5.state", "a.h5"));
}

}  // namespace lockstep::test

#include "src/record/run/options_json.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "src/record/hdf5/link_name.h"

namespace lockstep::test {

TEST_CASE("every option survives the round trip through JSON and is compared") {
  const std::vector<std::function<void(RunOptions&)>> changes = {
      [](RunOptions& o) { o.model = "mlp"; },
      [](RunOptions& o) { o.data = "mnist:a \"quoted\" folder"; },
      [](RunOptions& o) {
        o.lanes = {"fp32", "tf32"};
      },
      [](RunOptions& o) { o.steps = int64_t{1} << 40; },
      [](RunOptions& o) { o.batch = 3; },
      [](RunOptions& o) { o.accumulate = 4; },
      [](RunOptions& o) { o.workers = 4; },
      [](RunOptions& o) { o.backward_per_loss = true; },
      [](RunOptions& o) { o.optimizer.values["lr"] = 0.1 + 0.2; },
      [](RunOptions& o) { o.optimizer.values["momentum"] = 0; },
      [](RunOptions& o) { o.optimizer.values["nesterov"] = 1; },
      [](RunOptions& o) { o.optimizer.values["dampening"] = 1e-300; },
      [](RunOptions& o) { o.schedule.values["warmup"] = 5; },
      [](RunOptions& o) { o.clip_norm = 1; },
      [](RunOptions& o) { o.clip_norm_type = 1.5; },
      [](RunOptions& o) { o.clip_norm_type = std::numeric_limits<double>::infinity(); },
      [](RunOptions& o) { o.clip_value = 0.5; },
      [](RunOptions& o) { o.freeze = {"conv*"}; },
      [](RunOptions& o) { o.eval_batch_norm = {"bn1"}; },
      [](RunOptions& o) { o.batch_norm_eps = 0.5; },
      [](RunOptions& o) { o.start_from = "a.h5.state:fp32"; },
      [](RunOptions& o) { o.start_hash = "0123456789abcdef"; },
      [](RunOptions& o) { o.eval_in_fp32 = true; },
      [](RunOptions& o) { o.optimizer.values["weight_decay"] = 0.01; },
      [](RunOptions& o) { o.mode = LaneMode::kSynced; },
      [](RunOptions& o) { o.eval_every = 5; },
      [](RunOptions& o) { o.eval_examples = 5; },
      [](RunOptions& o) { o.measuring.histogram_every = 7; },
      [](RunOptions& o) { o.measuring.statistics_every = 7; },
      [](RunOptions& o) { o.measuring.counts_between = true; },
      [](RunOptions& o) { o.checkpoint_every = 9; },
      [](RunOptions& o) { o.seed = ~uint64_t{0}; },
      [](RunOptions& o) { o.seeds = 3; },
  };
  const RunOptions original;
  CHECK(option_differences(original, original).empty());
  for (size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    RunOptions changed;
    changes[i](changed);
    CHECK(option_differences(original, changed).size() == 1);
    CHECK(option_differences(changed, options_from_json(options_to_json(changed))).empty());
  }
}

TEST_CASE("optimizers, schedules and groups survive with all their numbers") {
  RunOptions changed;
  changed.optimizer = {"rmsprop", {{"centered", 1}}};
  changed.schedule = {"cosine", {{"eta_min", 0.25}}};
  changed.groups = {{"fc*", {"lion", {{"lr", 0.5}}}}, {"conv1", {"sgd", {}}}};
  const RunOptions read = options_from_json(options_to_json(changed));
  CHECK(option_differences(changed, read).empty());
  CHECK(!option_differences(RunOptions(), changed).empty());
  CHECK(read.optimizer.values.at("alpha") == 0.99);  // also those that were not given
  CHECK(read.schedule.values.at("eta_min") == 0.25);
  REQUIRE(read.groups.size() == 2);
  CHECK(read.groups[0].layers == "fc*");
  CHECK(read.groups[0].optimizer.values.at("lr") == 0.5);
  RunOptions other = changed;
  other.groups[0].optimizer.values["lr"] = 0.25;
  CHECK(option_differences(changed, other).size() == 1);
}

TEST_CASE("the options of a file of version 1 keep their meaning") {
  const RunOptions read = options_from_json(
      R"({"model":"mlp","data":"synthetic","lanes":["fp32"],"steps":3,"batch":8,
          "optimizer":{"name":"adamw","lr":0.05,"momentum":0.9,"beta1":0.9,"beta2":0.999,
                       "eps":1e-8,"weight_decay":0},
          "mode":"free","eval_every":0,"histogram_every":10,"checkpoint_every":50,"seed":1})");
  CHECK(read.optimizer.values.at("lr") == 0.05);
  CHECK(read.optimizer.values.at("weight_decay") == 0);
  CHECK(!read.optimizer.values.contains("momentum"));
  CHECK(read.schedule.name == "constant");
  CHECK(read.accumulate == 1);
  CHECK(read.eval_examples > 1'000'000'000);  // all
  CHECK(read.groups.empty());
}

TEST_CASE("lane names as components of HDF5 paths") {
  for (const std::string name : {"fp32", ".", "a/b", "50%", "%2F", "a%/b.toml", "..", ""}) {
    CAPTURE(name);
    CHECK(hdf5::unescape_link(hdf5::escape_link(name)) == name);
    CHECK(hdf5::escape_link(name).find('/') == std::string::npos);
  }
  CHECK(hdf5::escape_link("a/b%.toml") == "a%2Fb%25.toml");
}

}  // namespace lockstep::test

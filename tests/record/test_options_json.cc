#include "src/record/options_json.h"

#include <doctest/doctest.h>

#include <functional>

#include "src/record/layout.h"

namespace lockstep::test {

TEST_CASE("every option survives the way through JSON and is compared") {
  const std::vector<std::function<void(RunOptions&)>> changes = {
      [](RunOptions& o) { o.model = "mlp"; },
      [](RunOptions& o) { o.data = "mnist:a \"quoted\" folder"; },
      [](RunOptions& o) {
        o.lanes = {"fp32", "tf32"};
      },
      [](RunOptions& o) { o.steps = int64_t{1} << 40; },
      [](RunOptions& o) { o.batch = 3; },
      [](RunOptions& o) { o.optimizer.name = "adamw"; },
      [](RunOptions& o) { o.optimizer.lr = 0.1 + 0.2; },
      [](RunOptions& o) { o.optimizer.momentum = 0; },
      [](RunOptions& o) { o.optimizer.beta1 = 0.8; },
      [](RunOptions& o) { o.optimizer.beta2 = 0.99; },
      [](RunOptions& o) { o.optimizer.eps = 1e-300; },
      [](RunOptions& o) { o.optimizer.weight_decay = 0.01; },
      [](RunOptions& o) { o.mode = LaneMode::kSynced; },
      [](RunOptions& o) { o.eval_every = 5; },
      [](RunOptions& o) { o.histogram_every = 7; },
      [](RunOptions& o) { o.checkpoint_every = 9; },
      [](RunOptions& o) { o.seed = ~uint64_t{0}; },
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

TEST_CASE("lane names as components of HDF5 paths") {
  for (const std::string name : {"fp32", ".", "a/b", "50%", "%2F", "a%/b.toml", "..", ""}) {
    CAPTURE(name);
    CHECK(layout::unescape(layout::escape(name)) == name);
    CHECK(layout::escape(name).find('/') == std::string::npos);
  }
  CHECK(layout::escape("a/b%.toml") == "a%2Fb%25.toml");
}

}  // namespace lockstep::test

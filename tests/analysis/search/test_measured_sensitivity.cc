// The policies in which one layer, or one role of it, is low alone: what they round, by running.
#include "analysis/search/measured_sensitivity.h"

#include <doctest/doctest.h>

#include <set>

#include "tests/analysis/recorded_run.h"
#include "tests/record/run/columns.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

// "fc2 weight" of every site where a lane rounded something, storage apart.
std::set<std::string> rounded(const RunFile& run, int lane) {
  std::set<std::string> out;
  for (int64_t step = 0; step < run.steps(); ++step) {
    const std::vector<uint64_t> inexact =
        testing::column(run.step(lane, step), &TensorStats::inexact);
    for (const Site& site : run.sites().sites) {
      if (inexact[static_cast<size_t>(site.id)] == 0 || !is_in_graph(site)) continue;
      out.insert(site.layer + " " + std::string(to_string(site.role)));
    }
  }
  return out;
}

TEST_CASE("alone, a role of a layer is rounded and nothing else") {
  const TempDir dir;
  RunOptions options = small_run();
  options.model = "lenet";
  options.lanes = {"fp32"};
  const Network network = read_network(record(dir.file("trace.h5"), options));
  int roles = 0;
  for (const std::string format : {"fp16", "fp8", "mxfp8"}) {
    options.lanes = {"fp32", "layer.toml"};
    options.policy_texts = {
        {"layer.toml", alone_policy("fc2", format, std::nullopt, network, /*scale_exponent=*/10)}};
    const std::vector<Role> all = roles_in_format("fc2", format, network);
    for (const Role role : all) {
      const std::string lane = std::string(to_string(role)) + ".toml";
      options.lanes.push_back(lane);
      options.policy_texts[lane] = alone_policy("fc2", format, role, network, 10);
    }
    const RunFile run = record(dir.file(format + ".h5"), options);
    CAPTURE(format);
    std::set<std::string> whole;
    for (const Role role : all) {
      const std::string name = "fc2 " + std::string(to_string(role));
      CAPTURE(name);
      const auto sites = rounded(run, run.lane_index(std::string(to_string(role)) + ".toml"));
      CHECK(sites.size() == 1);
      CHECK(sites.contains(name));
      whole.insert(name);
      ++roles;
    }
    CHECK(rounded(run, run.lane_index("layer.toml")) == whole);
  }
  // fp16: weight, activation, grad_activation, grad_weight; the others have factors alone.
  CHECK(roles == 4 + 3 + 3);
}

TEST_CASE("an op that follows its operands stays in fp32 after a layer that is low alone") {
  const TempDir dir;
  RunOptions options = small_run();
  options.model = "gpt";
  options.sizes = {{"layers", 1}, {"width", 16}, {"heads", 2}, {"context", 8}};
  options.data = "";
  options.batch = 2;
  options.steps = 1;
  options.lanes = {"fp32"};
  const Network network = read_network(record(dir.file("trace.h5"), options));
  const std::string layer = "h.0.mlp.fc1";  // h.0.mlp.gelu reads its output
  options.lanes = {"fp32", "layer.toml"};
  options.policy_texts = {{"layer.toml", alone_policy(layer, "fp16", std::nullopt, network, 0)}};
  const RunFile run = record(dir.file("run.h5"), options);
  const std::set<std::string> sites = rounded(run, 1);
  CHECK(sites.size() >= 4);
  for (const std::string& site : sites) {
    CAPTURE(site);
    CHECK(site.starts_with(layer + " "));
  }
}

}  // namespace
}  // namespace lockstep

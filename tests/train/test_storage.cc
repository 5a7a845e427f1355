// What a lane records where weights, buffers, constants and inputs are rounded into storage.
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/train/lane/lane.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

// y = fc(x) + offset + level, with one number in each that FP16 cannot hold.
struct Stored {
  Stored() : graph(make()), sites(make_sites(graph, 1)) {}

  static Graph make() {
    GraphBuilder b("stored");
    const Value x = b.input("x", {{1, 4}, ElementType::kFloat});
    const Value t = b.input("t", {{1, 1}, ElementType::kFloat});
    const Value offset = b.constant("offset", Tensor::from<float>({1}, {1e-8F}));
    const Value y = b.op("add", {b.linear("fc", x, 1, /*bias=*/false), offset}, {}, "add");
    const Value z = b.op("add", {y, b.buffer("level", {1})}, {}, "add");
    b.set_loss(b.op("mse_loss", {z, t}, {}, "loss"));
    return differentiate(b.finish());
  }

  std::map<std::string, Tensor> initial() const {
    return {{"fc.weight", Tensor::from<float>({1, 4}, {1e5F, 1e-8F, 1e-6F, 0.5F})},
            {"level", Tensor::from<float>({1}, {-2e5F})}};
  }
  Batch batch() const {
    return {{"x", Tensor::from<float>({1, 4}, {7e4F, -0.1F, 0, 1})},
            {"t", Tensor::from<float>({1, 1}, {0})}};
  }

  Graph graph;
  SiteTable sites;
};

// The records of steps 0, 1, ... of one lane, in lockstep with the reference.
std::vector<LaneStep> steps_of(const Stored& net, const char* name, int64_t steps,
                               const RunOptions& options) {
  const LaneContext context = make_lane_context(net.graph, net.sites, options);
  Lane reference(context, describe_lane("fp32"), net.initial());
  Lane lane(context, describe_lane(name), net.initial());
  const bool is_reference = std::string_view(name) == "fp32";
  std::vector<LaneStep> records;
  for (int64_t step = 0; step < steps; ++step) {
    LaneStep of_reference;
    of_reference.sites.resize(net.sites.sites.size());
    LaneStep record = of_reference;
    const Batch batch = net.batch();
    if (options.mode == LaneMode::kSynced) {
      if (step > 0) reference.observe_stored();
      if (!is_reference) lane.restart_from(reference, step);
    }
    reference.begin_micro_batch(step, 0, batch, 0, nullptr, of_reference.sites);
    lane.begin_micro_batch(step, 0, batch, 0, &reference, record.sites);
    for (int n = 0; n < static_cast<int>(net.graph.nodes.size()); ++n) {
      reference.run_node(n, nullptr, of_reference.sites);
      lane.run_node(n, &reference, record.sites);
    }
    reference.finish_micro_batch(0, of_reference);
    lane.finish_micro_batch(0, record);
    reference.finish_step(nullptr, of_reference);
    lane.finish_step(&reference, record);
    records.push_back(is_reference ? of_reference : record);
  }
  return records;
}

}  // namespace

TEST_CASE("storage: FP16 counts what becomes infinite, zero and subnormal, by hand") {
  const Stored net;
  const std::map<std::string, int32_t> stored = net.sites.storage_sites();
  REQUIRE(stored.size() == 5);
  const LaneStep step = steps_of(net, "pure-fp16", 1, {}).at(0);
  const auto at = [&](const char* value) {
    return step.sites[static_cast<size_t>(stored.at(value))];
  };
  const TensorStats weight = at("p:fc.weight").stats;
  CHECK(weight.count == 4);
  CHECK(weight.to_infinity == 1);   // 1e5 > 65504
  CHECK(weight.to_zero == 1);       // 1e-8 < 2^-25
  CHECK(weight.to_subnormal == 1);  // 1e-6 < 2^-14
  CHECK(weight.inexact == 3);       // all but 0.5
  CHECK(weight.abs_max == 1e5F);
  CHECK(at("p:fc.weight").error.compared == 3);
  CHECK(at("b:level").stats.to_infinity == 1);
  CHECK(at("b:level").stats.abs_max == 2e5F);
  CHECK(at("c:offset").stats.to_zero == 1);
  CHECK(at("c:offset").error.err_sq == double(1e-8F) * double(1e-8F));
  const TensorStats input = at("in0").stats;
  CHECK(input.count == 4);
  CHECK(input.to_infinity == 1);
  CHECK(input.source_zero == 1);
  CHECK(input.inexact == 2);  // 7e4, -0.1
  CHECK(at("in0").error.compared == 3);
  // What reads them sees them as stored.
  const Node& fc = net.graph.nodes.at(0);
  const int32_t operand = net.sites.find(fc.id, Point::kOperand, 1);
  CHECK(step.sites[static_cast<size_t>(operand)].stats.source_zero == 1);
  CHECK(step.sites[static_cast<size_t>(operand)].stats.to_zero == 0);
}

TEST_CASE("storage: in FP32 nothing is lost, and the reference has every value to compare with") {
  const Stored net;
  for (const char* name : {"fp32", "torch-autocast-fp16", "fp64"}) {
    CAPTURE(name);
    const LaneStep step = steps_of(net, name, 1, {}).at(0);
    for (const auto& [value, site] : net.sites.storage_sites()) {
      CAPTURE(value);
      const SiteRecord& record = step.sites[static_cast<size_t>(site)];
      CHECK(record.measured);
      CHECK(record.stats.count > 0);
      CHECK(record.stats.inexact == 0);
      CHECK(record.error.compared == record.stats.count);
      CHECK(record.error.err_sq == 0);
      CHECK(record.error.ref_sq == record.stats.sum_sq);
    }
  }
}

TEST_CASE("storage: inputs in every step; the rest once, or in synced mode in every step") {
  const Stored net;
  for (const LaneMode mode : {LaneMode::kFree, LaneMode::kSynced}) {
    RunOptions options;
    options.mode = mode;
    for (const char* name : {"fp32", "pure-fp16"}) {
      CAPTURE(name);
      const std::vector<LaneStep> steps = steps_of(net, name, 3, options);
      const bool synced = mode == LaneMode::kSynced;
      for (const auto& [value, site] : net.sites.storage_sites()) {
        CAPTURE(value);
        const bool is_input = value.starts_with("in");
        const bool is_constant = value.starts_with("c:");
        for (size_t step = 0; step < steps.size(); ++step) {
          CAPTURE(step);
          const bool expected = step == 0 || is_input || (synced && !is_constant);
          CHECK(steps[step].sites[static_cast<size_t>(site)].measured == expected);
        }
      }
    }
  }
}

TEST_CASE("storage: a run without measurements has no records") {
  const Stored net;
  RunOptions options;
  options.measuring.on = false;
  const LaneStep step = steps_of(net, "pure-fp16", 1, options).at(0);
  for (const SiteRecord& record : step.sites) CHECK_FALSE(record.measured);
}

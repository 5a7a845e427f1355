// Outputs that are written, rounded, measured and compared piece by piece: the records and results
// of a step with one pass for each.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "src/core/random.h"
#include "src/execute/step_runner.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/policy/find_policy.h"
#include "src/policy/parse/policy_file.h"
#include "tests/emulation/kernels/quantize_cases.h"

using namespace lockstep;

namespace {

// Several chunks of several blocks, and a ragged end.
constexpr int64_t kRows = 190, kWidth = 515;

Graph pieces_graph() {
  GraphBuilder b("pieces");
  const Value x = b.input("x", {{kRows, kWidth}});
  const Value hidden = b.relu("relu", b.linear("fc", x, kWidth));
  const Value sum = b.op("gelu", {b.op("add", {hidden, x}, {}, "residual")}, {}, "gelu");
  const Value kept = b.op("mul", {b.dropout("dropout", sum, 0.3)}, {{"scalar", 0.7}}, "scaled");
  const Value turned = b.op("permute", {kept}, {{"dims", std::vector<int64_t>{1, 0}}}, "turned");
  const Value back = b.op("permute", {turned}, {{"dims", std::vector<int64_t>{1, 0}}}, "back");
  const Value y = b.linear("plain", back, kWidth, /*bias=*/false);
  b.set_loss(b.op("sum", {b.op("mul", {y, x}, {}, "weighed")}, {}, "loss"));
  return differentiate(b.finish());
}

// The same kernels, one pass after the other.
const KernelSet& kernels_in_passes() {
  static const KernelSet set = [] {
    KernelSet passes = active_kernels();
    passes.f32.fill_and_quantize = nullptr;
    passes.f32.rounded_gemm = nullptr;
    passes.f32.quantize = [](const float* before, float* after, int64_t count,
                             const QuantizeSpec& spec, TensorStats* stats) {
      QuantizeSpec alone = spec;
      alone.comparison = nullptr;
      active_kernels().f32.quantize(before, after, count, alone, stats);
    };
    return passes;
  }();
  return set;
}

Tensor numbers(const Shape& shape, uint32_t stream, float scale) {
  const RandomStream random(5, RandomPurpose::kTest, stream);
  Tensor tensor(shape, Container::kF32);
  uint64_t i = 0;
  for (float& value : tensor.as<float>()) {
    value = scale * static_cast<float>(random.uniform(i++) - 0.5);
  }
  return tensor;
}

enum class Measuring { kNothing, kCounts, kAll, kSampled };

// Runs one step of a lane and of the FP32 reference with the given kernels.
struct PiecesStep {
  PiecesStep(const Graph& graph, const SiteTable& sites, const Policy& policy, Measuring measuring,
             const KernelSet& (*kernels)())
      : reference(graph, sites, find_policy("fp32"), {.kernels = kernels}),
        lane(graph, sites, policy, {.kernels = kernels}),
        records(measuring == Measuring::kNothing ? 0 : sites.sites.size()) {
    const Tensor w = numbers({kWidth, kWidth}, 1, 0.2F), bias = numbers({kWidth}, 2, 1);
    const Batch batch = {{"x", numbers({kRows, kWidth}, 3, 4)}};
    std::vector<SiteRecord> of_reference(records.size());
    for (StepRunner* runner : {&reference, &lane}) {
      runner->bind_parameter("fc.weight", w);
      runner->bind_parameter("fc.bias", bias);
      runner->bind_parameter("plain.weight", w);
      runner->begin(
          {.key = {.seed = 4, .step = 6},
           .loss_scales = {1},
           .measuring = {.detail = measuring == Measuring::kCounts ? SiteDetail::kCounts
                                                                   : SiteDetail::kEverything,
                         .sample_sums = measuring == Measuring::kSampled}},
          batch);
    }
    for (int node = 0; node < lane.node_count(); ++node) {
      reference.run_node(node, nullptr, of_reference);
      lane.run_node(node, &reference, records);
    }
    for (const char* name : {"fc.weight", "fc.bias", "plain.weight"}) {
      gradients.push_back(lane.gradient(name));
    }
  }
  StepRunner reference, lane;
  std::vector<SiteRecord> records;
  std::vector<Tensor> gradients;
};

}  // namespace

TEST_CASE("outputs in pieces: records and gradients of one pass after the other") {
  const RestoreThreads restore;
  const Graph graph = pieces_graph();
  const SiteTable sites = make_sites(graph, 0);
  int64_t compared = 0, weighed = 0;
  for (const char* policy : {"fp32", "torch-autocast-fp16", "pure-bf16", "tf32", "fp8-current"}) {
    for (const Measuring measuring :
         {Measuring::kNothing, Measuring::kCounts, Measuring::kAll, Measuring::kSampled}) {
      CAPTURE(policy);
      CAPTURE(static_cast<int>(measuring));
      set_thread_count(2);
      const Policy of_lane = find_policy(policy);
      const PiecesStep pieces(graph, sites, of_lane, measuring, active_kernels);
      set_thread_count(1);
      const PiecesStep passes(graph, sites, of_lane, measuring, kernels_in_passes);
      for (size_t i = 0; i < pieces.gradients.size(); ++i) {
        CHECK(pieces.gradients[i].same_bits(passes.gradients[i]));
      }
      for (size_t s = 0; s < pieces.records.size(); ++s) {
        const SiteRecord &a = pieces.records[s], &b = passes.records[s];
        CAPTURE(sites.sites[s].layer);
        CHECK(a.measured == b.measured);
        CHECK(a.counted == b.counted);
        CHECK(difference(a.stats, b.stats) == "");
        CHECK(difference(a.error, b.error) == "");
        CHECK(a.effect.rounding == b.effect.rounding);
        CHECK(a.effect.range == b.effect.range);
        compared += a.error.compared > 0 && a.error.err_sq > 0 ? 1 : 0;
        weighed += a.effect.rounding != 0 ? 1 : 0;
      }
    }
  }
  CHECK(compared > 100);
  CHECK(weighed > 10);
}

TEST_CASE("relu's gradient is that of its rounded result") {
  constexpr int64_t kCount = 4;
  GraphBuilder b("relu");
  const Value x =
      b.op("mul", {b.input("x", {{kCount}}), b.parameter("w", {kCount})}, {}, "product");
  b.set_loss(b.op("sum", {b.relu("relu", x)}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  const SiteTable sites = make_sites(graph, 0);
  const Policy narrow = read_policy(
      {"extends = \"fp32:1\"\n[[rule]]\nlayer = \"relu\"\npoint = \"output\"\nformat = \"e5m2\"\n",
       "narrow.toml", false, [](const std::string& name) { return find_policy(name); }});
  const Tensor w = Tensor::from<float>({kCount}, {1, 1, 1, 1});
  // 1e-9 is 0 in E5M2.
  const Batch batch = {{"x", Tensor::from<float>({kCount}, {2, 1e-9F, 0, -2})}};
  const auto gradient_of = [&](const Policy& policy) {
    StepRunner runner(graph, sites, policy);
    runner.bind_parameter("w", w);
    runner.begin({.key = {}, .loss_scales = {1}}, batch);
    runner.run_all();
    return runner.gradient("w");
  };
  const Tensor wide = gradient_of(find_policy("fp32")), rounded = gradient_of(narrow);
  CHECK(wide.as<float>()[1] == 1e-9F);
  CHECK(rounded.as<float>()[1] == 0);
  for (const Tensor* of : {&wide, &rounded}) {
    CHECK(of->as<float>()[0] == 2);
    CHECK(of->as<float>()[2] == 0);
    CHECK(of->as<float>()[3] == 0);
  }
}

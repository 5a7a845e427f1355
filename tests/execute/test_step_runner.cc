// The one path of a step: the values a pass binds, and those its owner reads.
#include "src/execute/step_runner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "src/core/error.h"
#include "src/execute/storage.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/policy/find_policy.h"

using namespace lockstep;

namespace {

// y = x w^T, loss = mean (y - target)^2.
Graph linear_graph() {
  GraphBuilder b("linear");
  const Value x = b.input("x", {{1, 2}});
  const Value target = b.input("target", {{1, 1}});
  const Value y = b.linear("fc", x, 1, /*bias=*/false);
  b.set_loss(b.op("mse_loss", {y, target}, {}, "loss"));
  return differentiate(b.finish());
}

Batch linear_batch(float target) {
  return {{"x", Tensor::from<float>({1, 2}, {1, 2})},
          {"target", Tensor::from<float>({1, 1}, {target})}};
}

// A runner of linear_graph() with w = (3, 4).
struct LinearRunner {
  explicit LinearRunner(std::string_view policy, Container container = Container::kF32,
                        const KernelSet& (*kernels)() = active_kernels)
      : sites(make_sites(graph, 0)),
        runner(graph, sites, find_policy(policy), {.container = container, .kernels = kernels}),
        weight(Tensor::from<float>({1, 2}, {3, 4}).to(container)) {
    runner.bind_parameter("fc.weight", weight);
  }
  void begin(float target, double scale = 1, double divisor = 1) {
    batch = linear_batch(target);
    runner.begin({.key = {}, .loss_scales = {scale}, .loss_divisor = divisor}, batch);
  }
  Graph graph = linear_graph();
  SiteTable sites;
  StepRunner runner;
  Tensor weight;
  Batch batch;  // bound until the pass is over
};

double at(const Tensor& tensor, size_t i) {
  return tensor.to(Container::kF64).as<double>()[i];
}

}  // namespace

TEST_CASE("a pass by hand: the seed is scale / divisor, in FP32 and FP64 containers") {
  for (const Container container : {Container::kF32, Container::kF64}) {
    LinearRunner linear("fp32", container);
    StepRunner& runner = linear.runner;
    linear.begin(10, 8, 4);
    runner.run_all();
    // y = 3 + 8 = 11, loss = 1, dy = 2 (11 - 10) 8 / 4 = 4, dw = dy x
    CHECK(runner.loss() == 1);
    CHECK(at(runner.gradient("fc.weight"), 0) == 4);
    CHECK(at(runner.gradient("fc.weight"), 1) == 8);
  }
}

TEST_CASE("gradients of two passes add up, rounded to the weight's format") {
  LinearRunner linear("pure-fp16");
  StepRunner& runner = linear.runner;
  CHECK(runner.parameter_format("fc.weight")->name == "fp16");
  Tensor total({1, 2}, Container::kF32);
  // dw = 2 (11 - target) (1, 2): first (2048, 4096), then (2, 4), whose sums FP16 may lack.
  linear.begin(11 - 1024);
  runner.run_all();
  runner.add_gradient("fc.weight", 0, /*first=*/true, runner.parameter_format("fc.weight"), total);
  CHECK(at(total, 0) == 2048);
  for (int repeats = 0; repeats < 2; ++repeats) {
    linear.begin(10, 1, 2);
    runner.run_all();
    CHECK(at(runner.gradient("fc.weight"), 0) == 1);
    const UpdateRecord added =
        runner.add_gradient("fc.weight", 0, /*first=*/false, runner.parameter_format("fc.weight"),
                            total, /*measure=*/true);
    REQUIRE(added.measured);  // 2048 + 1 and 4096 + 2 are ties to even
    CHECK(added.stats.count == 2);
    CHECK(added.stats.stagnant == 2);
    CHECK(added.stats.update_sq == 1 + 2 * 2);
    CHECK(added.stats.stagnant_sq == 1 + 2 * 2);
    CHECK(added.stats.weight_sq == 2048. * 2048 + 4096. * 4096);
  }
  CHECK(at(total, 0) == 2048);  // 2048 + 1 is 2048 in FP16, twice
  CHECK(at(total, 1) == 4096);  // 4096 + 2 is 4096 too
}

TEST_CASE("running statistics: what the batch adds, and whether the rounded buffer took it") {
  GraphBuilder b("norm");
  const Value x = b.input("x", {{2, 1, 1, 1}});
  const Value target = b.input("target", {{2, 1, 1, 1}});
  b.set_loss(b.op("mse_loss", {b.batch_norm("bn", x), target}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  const SiteTable sites = make_sites(graph, 0);
  StepRunner runner(graph, sites, find_policy("pure-bf16"));
  const Tensor one = Tensor::from<float>({1}, {1}), zero = Tensor::from<float>({1}, {0});
  runner.bind_parameter("bn.weight", one);
  runner.bind_parameter("bn.bias", zero);
  runner.bind_buffer("bn.running_mean", one);
  runner.bind_buffer("bn.running_var", one);
  // The mean is 1.015625 (in BF16), so 0.1 x 0.015625 is added to 1, whose ulp is 2^-7; the
  // variance is 0, so 0.1 is taken from 1.
  const Batch batch = {{"x", Tensor::from<float>({2, 1, 1, 1}, {1.015625F, 1.015625F})},
                       {"target", Tensor({2, 1, 1, 1}, Container::kF32)}};
  std::vector<SiteRecord> records(sites.sites.size());
  runner.begin({.key = {}, .loss_scales = {1}, .loss_divisor = 1}, batch, nullptr, records);
  for (int node = 0; node < runner.node_count(); ++node) runner.run_node(node, nullptr, records);
  const std::string node = graph.nodes.front().id;
  const UpdateRecord mean = records.at(sites.find(node, Point::kOutput, 1)).update;
  const UpdateRecord variance = records.at(sites.find(node, Point::kOutput, 2)).update;
  REQUIRE(mean.measured);
  CHECK(mean.stats.count == 1);
  CHECK(mean.stats.stagnant == 1);
  CHECK(mean.stats.weight_sq == 1);
  CHECK(std::sqrt(mean.stats.update_sq) == doctest::Approx(0.1 * 0.015625).epsilon(1e-4));
  CHECK(mean.stats.stagnant_sq == mean.stats.update_sq);
  CHECK(variance.stats.stagnant == 0);
  CHECK(variance.stats.stagnant_sq == 0);
  CHECK(std::sqrt(variance.stats.update_sq) == doctest::Approx(0.1).epsilon(1e-4));
}

TEST_CASE("inputs: FP32 unchanged, others converted once per pass; missing ones are named") {
  LinearRunner plain("fp32"), half("pure-fp16");
  Batch batch = linear_batch(10);
  batch.at("x").as<float>()[0] = 2049;  // 2048 in FP16
  for (LinearRunner* linear : {&plain, &half}) {
    linear->runner.begin({.key = {}, .loss_scales = {1}}, batch);
    linear->runner.run_forward();
  }
  const auto input = [](const LinearRunner& linear) -> const Tensor& {
    return linear.runner.values().of("in0");
  };
  CHECK(&input(plain) == &batch.at("x"));
  CHECK(at(input(half), 0) == 2048);
  batch.at("x").as<float>()[0] = 2050;
  half.runner.begin({.key = {}, .loss_scales = {1}}, batch);
  CHECK(at(input(half), 0) == 2050);
  batch.erase("target");
  CHECK_THROWS_WITH_AS(plain.runner.begin({.key = {}, .loss_scales = {1}}, batch),
                       doctest::Contains("needs an input 'target'"), InputError);
  CHECK_THROWS_AS(plain.runner.begin({}, batch), std::logic_error);  // no scale
}

TEST_CASE("only the forward pass runs, and its memory can be given back") {
  LinearRunner linear("fp32");
  linear.begin(10);
  linear.runner.run_forward();
  CHECK(linear.runner.loss() == 1);
  CHECK_THROWS_AS(linear.runner.gradient("fc.weight"), std::logic_error);
  linear.runner.forget_values();
  CHECK_THROWS_AS(linear.runner.loss(), std::logic_error);
  linear.begin(9);
  linear.runner.run_all();
  CHECK(linear.runner.loss() == 4);
}

TEST_CASE("a graph without a backward pass takes no seed") {
  GraphBuilder b("forward");
  const Value x = b.input("x", {{2}});
  b.set_loss(b.op("sum", {x}, {}, "loss"));
  const Graph graph = b.finish();
  const SiteTable sites = make_sites(graph, 0);
  StepRunner runner(graph, sites, find_policy("fp32"));
  const Batch batch = {{"x", Tensor::from<float>({2}, {1, 2})}};
  runner.begin({.key = {}, .loss_scales = {1}}, batch);
  runner.run_all();
  CHECK(runner.loss() == 3);
}

TEST_CASE("buffers: their new values, in the buffer's format; two may swap") {
  GraphBuilder b("buffers");
  const Value x = b.input("x", {{1}});
  const Value w = b.parameter("w", {1});
  b.set_loss(b.op("sum", {b.op("mul", {x, w}, {}, "loss")}, {}, "loss"));
  Graph forward = b.finish();
  for (const char* name : {"a", "c", "old"}) forward.buffers.push_back({name, {{1}}, ""});
  forward.mutations = {{"a", "b:c"}, {"c", "b:a"}, {"old", forward.nodes[0].id}};
  const Graph graph = differentiate(forward);
  const SiteTable sites = make_sites(graph, 0);
  StepRunner runner(graph, sites, find_policy("fp32"));
  const Tensor weight = Tensor::from<float>({1}, {5});
  std::map<std::string, Tensor> buffers = {{"a", Tensor::from<float>({1}, {1})},
                                           {"c", Tensor::from<float>({1}, {2})},
                                           {"old", Tensor::from<float>({1}, {7})}};
  runner.bind_parameter("w", weight);
  for (const auto& [name, tensor] : buffers) runner.bind_buffer(name, tensor);
  const Batch batch = {{"x", Tensor::from<float>({1}, {3})}};
  runner.begin({.key = {}, .loss_scales = {1}}, batch);
  runner.run_all();
  runner.take_mutations(buffers);
  CHECK(at(buffers.at("a"), 0) == 2);
  CHECK(at(buffers.at("c"), 0) == 1);
  CHECK(at(buffers.at("old"), 0) == 15);
}

namespace {

// The sum of dropout(x w).
Graph dropout_graph(int64_t count) {
  GraphBuilder b("dropout");
  const Value x = b.input("x", {{count}});
  const Value w = b.parameter("w", {count});
  const Value y = b.op("dropout", {b.op("mul", {x, w}, {}, "fc")}, {{"p", 0.5}}, "drop");
  b.set_loss(b.op("sum", {y}, {}, "loss"));
  return differentiate(b.finish());
}

}  // namespace

TEST_CASE("masks apply to one pass") {
  const Graph graph = dropout_graph(4);
  const SiteTable sites = make_sites(graph, 0);
  StepRunner runner(graph, sites, find_policy("fp32"));
  const Tensor weight = Tensor::from<float>({4}, {1, 1, 1, 1});
  runner.bind_parameter("w", weight);
  Batch batch = {{"x", Tensor::from<float>({4}, {1, 2, 4, 8})}};
  const auto loss = [&](const Batch& given) {
    runner.begin({.key = {}, .loss_scales = {1}}, given);
    runner.run_all();
    return runner.loss();
  };
  const double drawn = loss(batch);
  Batch masked = batch;
  const std::string mask = std::string(kMaskPrefix) + graph.nodes[1].id;
  for (const int32_t bits : {5, 10}) {  // the kept elements, doubled
    masked[mask] = Tensor::from<int32_t>({4}, {bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3});
    CHECK(loss(masked) == 2 * bits);
  }
  CHECK(loss(batch) == drawn);
}

namespace {

// Calls of the counting set's entries.
int quantized = 0, added = 0, drawn = 0;

const KernelSet& counting_kernels() {
  static const KernelSet set = [] {
    KernelSet counting = active_kernels();
    counting.f32.quantize = [](const float* before, float* after, int64_t count,
                               const QuantizeSpec& spec, TensorStats* stats) {
      ++quantized;
      active_kernels().f32.quantize(before, after, count, spec, stats);
    };
    counting.f32.fill_and_quantize = nullptr;
    counting.i32.draw_mask = [](const RandomStream& stream, uint64_t step, double keep,
                                int32_t* mask, int64_t count) {
      ++drawn;
      active_kernels().i32.draw_mask(stream, step, keep, mask, count);
    };
    counting.f32.add = [](const float* a, const float* b, float* y, int64_t count) {
      ++added;
      active_kernels().f32.add(a, b, y, count);
    };
    return counting;
  }();
  return set;
}

}  // namespace

TEST_CASE("a mask is drawn by the reference alone, unless a lane's key is another") {
  const Graph graph = dropout_graph(64);
  const SiteTable sites = make_sites(graph, 0);
  Tensor weight({64}, Container::kF32);
  for (float& value : weight.as<float>()) value = 1;
  Tensor values({64}, Container::kF32);
  for (size_t i = 0; i < values.as<float>().size(); ++i) {
    values.as<float>()[i] = static_cast<float>(i + 1);
  }
  const Batch batch = {{"x", values}};
  const auto runner_of = [&](const char* policy) {
    auto runner = std::make_unique<StepRunner>(graph, sites, find_policy(policy),
                                               ExecutionRules{.kernels = counting_kernels});
    runner->bind_parameter("w", weight);
    return runner;
  };
  const auto reference = runner_of("fp32"), lane = runner_of("tf32"), alone = runner_of("tf32");
  for (const uint64_t step : {uint64_t{7}, uint64_t{8}}) {
    const ExecutionKey key{.seed = 1, .step = 7}, own{.seed = 1, .step = step};
    reference->begin({.key = key, .loss_scales = {1}}, batch);
    lane->begin({.key = own, .loss_scales = {1}}, batch, reference.get());
    drawn = 0;
    for (int node = 0; node < lane->node_count(); ++node) {
      reference->run_node(node, nullptr, {});
      lane->run_node(node, reference.get(), {});
    }
    CHECK(drawn == (step == key.step ? 1 : 2));
    alone->begin({.key = own, .loss_scales = {1}}, batch);
    alone->run_all();
    CHECK(lane->loss() == alone->loss());
    CHECK(lane->gradient("w").same_bits(alone->gradient("w")));
    CHECK((lane->loss() == reference->loss()) == (step == key.step));
  }
}

TEST_CASE("a runner's own set rounds its inputs and seed and adds up its gradients") {
  LinearRunner linear("pure-fp16", Container::kF32, counting_kernels);
  StepRunner& runner = linear.runner;
  quantized = added = 0;
  linear.begin(10);
  CHECK(quantized == 3);  // x, target and the seed
  runner.run_all();
  Tensor total({1, 2}, Container::kF32);
  runner.add_gradient("fc.weight", 0, /*first=*/true, runner.parameter_format("fc.weight"), total);
  const int before = quantized;
  CHECK(added == 0);
  runner.add_gradient("fc.weight", 0, /*first=*/false, runner.parameter_format("fc.weight"), total);
  CHECK(added == 1);
  CHECK(quantized == before + 1);
  CHECK(at(total, 0) == 2 * at(runner.gradient("fc.weight"), 0));
}

TEST_CASE("storage: FP32 rounds to nearest, narrower formats as the policy says") {
  const ExecutionKey key{1, 2, 3};
  const QuantizeSpec wide = storage_rounding(&find_format("fp32"), Rounding::kStochastic, key, 7);
  CHECK(wide.rounding == Rounding::kNearestEven);
  const QuantizeSpec narrow = storage_rounding(&find_format("fp16"), Rounding::kStochastic, key, 7);
  CHECK(narrow.rounding == Rounding::kStochastic);
  CHECK(narrow.key.site == 7);
  CHECK(narrow.key.step == 3);
  Tensor to({2}, Container::kF64);
  store(active_kernels(), Tensor::from<float>({2}, {2049, 0.5}), to,
        {&find_format("fp16"), Rounding::kNearestEven});
  CHECK(to.as<double>()[0] == 2048);
  CHECK(first_value(to) == 2048);
}

namespace {

// The error at every site of a lane in FP16, and what it does to the loss, if the reference runs
// `lead` nodes ahead of it and keeps its values for readers that lag `lag` nodes behind.
std::vector<double> errors_behind(int lead, int lag) {
  constexpr int kWidth = 4, kLayers = 6;  // values of one size, so that they take turns in memory
  GraphBuilder b("chain");
  Value x = b.input("x", {{2, kWidth}});
  const Value target = b.input("target", {{2, kWidth}});
  std::vector<std::string> names;
  for (int layer = 0; layer < kLayers; ++layer) {
    names.push_back("fc" + std::to_string(layer));
    x = b.op("tanh", {b.linear(names.back(), x, kWidth, /*bias=*/false)}, {}, names.back() + ".f");
  }
  b.set_loss(b.op("mse_loss", {x, target}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  const SiteTable sites = make_sites(graph, 0);
  StepRunner reference(graph, sites, find_policy("fp32"), {.readers_lag = lag});
  StepRunner lane(graph, sites, find_policy("torch-autocast-fp16"));
  std::vector<Tensor> weights;
  weights.reserve(names.size());  // bound by address
  for (size_t layer = 0; layer < names.size(); ++layer) {
    Tensor& w = weights.emplace_back(Shape{kWidth, kWidth}, Container::kF32);
    for (size_t i = 0; i < kWidth * kWidth; ++i) {
      w.as<float>()[i] = static_cast<float>((i * 5 + layer * 3) % 11) / 8 - 0.625f;
    }
    for (StepRunner* runner : {&reference, &lane}) {
      runner->bind_parameter(names[layer] + ".weight", w);
    }
  }
  const Tensor input = Tensor::from<float>({2, kWidth}, {1, -2, 0.3f, 4, -0.7f, 0.1f, 2, 1.5f});
  const Batch batch = {{"x", input}, {"target", Tensor({2, kWidth}, Container::kF32)}};
  std::vector<SiteRecord> of_reference(sites.sites.size()), of_lane(sites.sites.size());
  const StepPass pass = {.key = {}, .loss_scales = {1}, .measuring = {.sample_sums = true}};
  reference.begin(pass, batch, nullptr, of_reference);
  lane.begin(pass, batch, &reference, of_lane);
  const int count = reference.node_count();
  for (int node = 0; node < count + lead; ++node) {
    if (node < count) reference.run_node(node, nullptr, of_reference);
    if (node >= lead) lane.run_node(node - lead, &reference, of_lane);
  }
  std::vector<double> errors;
  for (const SiteRecord& record : of_lane) {
    errors.push_back(record.error.err_sq);
    errors.push_back(record.effect.rounding);
  }
  return errors;
}

}  // namespace

TEST_CASE("a reference may run ahead by as many nodes as it keeps its values for") {
  const std::vector<double> together = errors_behind(0, 0);
  CHECK(std::ranges::count_if(together, [](double e) { return e > 0; }) > 20);
  for (const int lead : {1, 2, 5}) {
    CAPTURE(lead);
    CHECK(errors_behind(lead, lead) == together);
    CHECK(errors_behind(0, lead) == together);
  }
  // A layer's sum is used by the next node, and overwritten by the one after that.
  for (const int lead : {1, 2, 5}) CHECK(errors_behind(lead, 0) != together);
}

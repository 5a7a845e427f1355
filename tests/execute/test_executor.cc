// The executor: results against hand-checked numbers, records against slow recounts.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/quantize.h"
#include "emulation/kernels/rounded_gemm.h"
#include "emulation/stats/hash.h"
#include "src/core/random.h"
#include "src/execute/executor.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/lower/lower.h"
#include "src/policy/find_policy.h"

using namespace lockstep;

namespace {

// y = relu(x w^T), loss = mean (y - target)^2.
Graph small_graph(int64_t batch, int64_t in, int64_t out, bool bias = false) {
  GraphBuilder b("small");
  const Value x = b.input("x", {{batch, in}});
  const Value target = b.input("target", {{batch, out}});
  const Value y = b.relu("relu", b.linear("fc", x, out, bias));
  b.set_loss(b.op("mse_loss", {y, target}, {}, "loss"));
  return differentiate(b.finish());
}

// An executor with its tensors: everything of one lane that a test reads.
struct TestLane {
  TestLane(const Graph& g, const SiteTable& s, std::string_view policy_name, bool fp64 = false,
           const KernelSet& (*kernels)() = active_kernels)
      : graph(g),
        sites(s),
        executor(g, s, lower(g, s, find_policy(policy_name), fp64),
                 {.container = fp64 ? Container::kF64 : Container::kF32, .kernels = kernels}) {
    records.resize(sites.sites.size());
  }
  // Values are rounded to the format that the program reads.
  void bind(const std::string& id, const Tensor& value) {
    Tensor& mine = bound[id] = value.to(executor.rules().container);
    const QuantizeSpec spec{executor.values().external_format(id), Rounding::kNearestEven, {}};
    if (mine.container() == Container::kF64) {
      quantize<double>(active_kernels(), std::as_const(mine).as<double>(), mine.as<double>(), spec,
                       nullptr);
    } else {
      quantize<float>(active_kernels(), std::as_const(mine).as<float>(), mine.as<float>(), spec,
                      nullptr);
    }
    executor.values().bind(id, mine);
  }
  void bind_seed(float scale) { bind(std::string(kLossSeedId), Tensor::from<float>({}, {scale})); }

  const Graph& graph;
  const SiteTable& sites;
  Executor executor;
  std::map<std::string, Tensor> bound;
  std::vector<SiteRecord> records;
};

Tensor random_tensor(Shape shape, uint32_t index, double size) {
  const RandomStream random(1, RandomPurpose::kTest, index);
  Tensor t(shape, Container::kF32);
  const auto values = t.as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((2 * random.uniform(i) - 1) * size);
  }
  return t;
}

void bind_random(TestLane& lane, double size, float scale) {
  for (const GraphInput& input : lane.graph.inputs) {
    if (input.id == kLossSeedId) continue;
    lane.bind(input.id, random_tensor(input.type.shape, input.path == "x" ? 1 : 2, size));
  }
  lane.bind("p:fc.weight", random_tensor(lane.graph.parameters[0].type.shape, 3, size));
  lane.bind_seed(scale);
  lane.executor.begin_step({}, scale);
}

void run_all(TestLane& lane, TestLane* reference = nullptr) {
  for (int node = 0; node < lane.executor.node_count(); ++node) {
    if (reference != nullptr) reference->executor.run_node(node, nullptr, reference->records);
    lane.executor.run_node(node, reference == nullptr ? nullptr : &reference->executor,
                           lane.records);
  }
}

}  // namespace

TEST_CASE("a hand-checked step: loss, gradient, and the scale of every site") {
  const Graph graph = small_graph(1, 2, 1);
  const SiteTable sites = make_sites(graph, 0);
  for (const bool fp64 : {false, true}) {
    TestLane lane(graph, sites, "fp32", fp64);
    lane.bind("in0", Tensor::from<float>({1, 2}, {1, 2}));
    lane.bind("in1", Tensor::from<float>({1, 1}, {10}));
    lane.bind("p:fc.weight", Tensor::from<float>({1, 2}, {3, 4}));
    lane.bind_seed(8);
    lane.executor.begin_step({}, 8);
    run_all(lane);
    // y = 3 + 8 = 11, loss = 1, dy = 2 * 1 * 8, dw = dy x
    CHECK(lane.executor.values().of(graph.loss).to(Container::kF64).as<double>()[0] == 1);
    const Tensor dw =
        lane.executor.values().of(graph.gradients.at("fc.weight")).to(Container::kF64);
    CHECK(dw.as<double>()[0] == 16);
    CHECK(dw.as<double>()[1] == 32);
    int scaled = 0;
    for (const Site& site : sites.sites) {
      if (!lane.records[site.id].measured) continue;
      CHECK(lane.records[site.id].scale == (site.scaled ? 8 : 1));
      scaled += site.scaled;
    }
    CHECK(scaled >= 3);  // dy twice (output, operand) and dw
  }
}

TEST_CASE("records agree with a slow recount of their values") {
  const Graph graph = small_graph(5, 40, 7);
  const SiteTable sites = make_sites(graph, 0);
  for (const char* policy : {"fp32", "torch-autocast-fp16", "tf32", "pure-fp16"}) {
    CAPTURE(policy);
    TestLane reference(graph, sites, "fp32"), lane(graph, sites, policy);
    bind_random(reference, 1, 1);
    bind_random(lane, 1, 16);
    int outputs = 0;
    for (int node = 0; node < lane.executor.node_count(); ++node) {
      reference.executor.run_node(node, nullptr, reference.records);
      lane.executor.run_node(node, &reference.executor, lane.records);
      for (const Site& site : sites.sites) {
        if (site.node != graph.nodes[node].id || site.point != Point::kOutput) continue;
        CAPTURE(site.label());
        const SiteRecord& record = lane.records[site.id];
        REQUIRE(record.measured);
        const Tensor& value = lane.executor.values().of(site.value);
        const Tensor& truth = reference.executor.values().of(site.value);
        uint64_t hash = 0;
        double err_sq = 0;
        for (int64_t i = 0; i < value.size(); ++i) {
          hash += hash_element(value.as<float>()[i], static_cast<uint64_t>(i));
          const double e = value.as<float>()[i] / record.scale - truth.as<float>()[i];
          err_sq += e * e;
        }
        CHECK(record.stats.bits_hash == hash);
        CHECK(record.error.compared == static_cast<uint64_t>(value.size()));
        // Groups of pairs are added in float (gamma_6), then both sums of n terms in double.
        const double n = static_cast<double>(value.size()), u = 0x1p-24;
        const double bound = 6 * u / (1 - 6 * u) + 2 * n * 0x1p-53;
        CHECK(std::fabs(record.error.err_sq - err_sq) <= bound * err_sq);
        ++outputs;
      }
    }
    CHECK(outputs >= 5);
    for (const Site& site : sites.sites) {
      const SiteRecord& record = lane.records[site.id];
      if (!record.measured) continue;
      CAPTURE(site.label());
      const auto& histogram = record.stats.exponent_histogram;
      CHECK(record.stats.count == static_cast<uint64_t>(element_count(site.shape)));
      CHECK(std::accumulate(histogram.begin(), histogram.end(), uint64_t{0}) == record.stats.count);
    }
  }
}

TEST_CASE("an operand that no cast feeds is measured unchanged, also without a new pass") {
  const Graph graph = small_graph(5, 40, 7);
  const SiteTable sites = make_sites(graph, 0);
  for (const char* policy : {"fp32", "pure-fp16"}) {  // everything in one format: no casts
    CAPTURE(policy);
    TestLane lane(graph, sites, policy);
    bind_random(lane, 1, 1);
    int operands = 0;
    for (int node = 0; node < lane.executor.node_count(); ++node) {
      lane.executor.run_node(node, nullptr, lane.records);
      for (const Site& site : sites.sites) {
        if (site.node != graph.nodes[node].id || site.point != Point::kOperand) continue;
        CAPTURE(site.label());
        const TensorStats& stats = lane.records[site.id].stats;
        const Tensor& value = lane.executor.values().of(site.value);
        const Format& format = find_format(policy == std::string("fp32") ? "fp32" : "fp16");
        const TensorStats recount = observe<float>(active_kernels(), value.as<float>(), format);
        CHECK(stats.count == recount.count);
        CHECK(stats.inexact == 0);
        CHECK(stats.round_err_sq == 0);
        CHECK(stats.to_zero == 0);
        CHECK(stats.source_zero == recount.source_zero);
        CHECK(stats.to_subnormal == recount.to_subnormal);
        CHECK(stats.sum_sq == recount.sum_sq);
        CHECK(stats.abs_min_nonzero == recount.abs_min_nonzero);
        CHECK(stats.bits_hash == recount.bits_hash);
        CHECK(stats.exponent_histogram == recount.exponent_histogram);
        ++operands;
      }
    }
    CHECK(operands >= 8);
  }
}

TEST_CASE("the reference's error equals that of a comparison with itself") {
  const Graph graph = small_graph(5, 40, 7);
  const SiteTable sites = make_sites(graph, 0);
  TestLane reference(graph, sites, "fp32"), other(graph, sites, "fp32");
  bind_random(reference, 1, 1);
  bind_random(other, 1, 1);
  run_all(other, &reference);
  int measured = 0;
  for (const Site& site : sites.sites) {
    const SiteRecord &a = reference.records[site.id], &b = other.records[site.id];
    REQUIRE(a.measured == b.measured);
    if (!a.measured) continue;
    CAPTURE(site.label());
    CHECK(a.error.compared == b.error.compared);
    CHECK(a.error.err_sq == 0);
    CHECK(b.error.err_sq == 0);
    CHECK(b.error.err_max_ulps == 0);
    // The reference takes them from its sum_sq. Both add groups of four in float: gamma_4 each.
    constexpr double kFloatRoundoff = 0x1p-24;
    constexpr double kGamma = 2 * 4 * kFloatRoundoff / (1 - 4 * kFloatRoundoff);
    CHECK(std::abs(a.error.dot_ref - b.error.dot_ref) <= kGamma * b.error.dot_ref);
    CHECK(std::abs(a.error.ref_sq - b.error.ref_sq) <= kGamma * b.error.ref_sq);
    CHECK(a.stats.bits_hash == b.stats.bits_hash);
    ++measured;
  }
  CHECK(measured >= 8);
}

TEST_CASE("tensors shared by liveness keep no old values: two runs of a step give the same bits") {
  const Graph graph = small_graph(5, 40, 7);
  const SiteTable sites = make_sites(graph, 0);
  TestLane lane(graph, sites, "torch-autocast-fp16");
  bind_random(lane, 1, 1024);
  run_all(lane);
  const std::vector<SiteRecord> first = lane.records;
  bind_random(lane, 2, 1024);  // other values in between
  run_all(lane);
  bind_random(lane, 1, 1024);
  run_all(lane);
  for (size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i].stats.bits_hash == lane.records[i].stats.bits_hash);
    CHECK(first[i].stats.sum_sq == lane.records[i].stats.sum_sq);
  }
}

TEST_CASE("an FP16 accumulator's overflow is recorded at its site, before the output is rounded") {
  const Graph graph = small_graph(1, 64, 1);
  const SiteTable sites = make_sites(graph, 0);
  TestLane lane(graph, sites, "pure-fp16");
  const std::vector<float> hundreds(64, 100);
  lane.bind("in0", Tensor::from<float>({1, 64}, hundreds));
  lane.bind("in1", Tensor::from<float>({1, 1}, {0}));
  lane.bind("p:fc.weight", Tensor::from<float>({1, 64}, hundreds));
  lane.bind_seed(1);
  lane.executor.begin_step({}, 1);
  run_all(lane);
  const int32_t site = sites.find(graph.nodes[0].id, Point::kAccumulator, 0);
  REQUIRE(site >= 0);
  const SiteRecord& record = lane.records[site];
  REQUIRE(record.measured);
  CHECK(record.stats.count == 1);
  CHECK(record.stats.to_infinity == 1);  // 64 * 10^4 is beyond 65504
  CHECK(record.stats.nan == 0);
  CHECK(std::isinf(record.stats.abs_max));
  CHECK(record.error.compared == 0);
  const int32_t output = sites.find(graph.nodes[0].id, Point::kOutput, 0);
  CHECK(lane.records[output].stats.to_infinity == 0);  // the sum had already overflowed
  CHECK(lane.records[output].stats.nonfinite_seen());
}

TEST_CASE("a lane without measurement computes the same values") {
  const Graph graph = small_graph(5, 40, 7);
  const SiteTable sites = make_sites(graph, 0);
  TestLane measured(graph, sites, "pure-fp16"), plain(graph, sites, "pure-fp16");
  bind_random(measured, 1, 1);
  bind_random(plain, 1, 1);
  plain.records.clear();
  run_all(measured);
  run_all(plain);
  const std::string dw = graph.gradients.at("fc.weight");
  CHECK(measured.executor.values().of(dw).same_bits(plain.executor.values().of(dw)));
}

TEST_CASE("an accumulator site holds the bare sums, before the bias is added") {
  const Graph graph = small_graph(1, 2, 1, /*bias=*/true);
  const SiteTable sites = make_sites(graph, 0);
  TestLane lane(graph, sites, "pure-fp16");
  lane.bind("in0", Tensor::from<float>({1, 2}, {1, 2}));
  lane.bind("in1", Tensor::from<float>({1, 1}, {0}));
  lane.bind("p:fc.weight", Tensor::from<float>({1, 2}, {3, 4}));
  lane.bind("p:fc.bias", Tensor::from<float>({1}, {100}));
  lane.bind_seed(1);
  lane.executor.begin_step({}, 1);
  run_all(lane);
  const std::string& node = graph.nodes.front().id;
  const SiteRecord& sums = lane.records.at(sites.find(node, Point::kAccumulator, 0));
  const SiteRecord& output = lane.records.at(sites.find(node, Point::kOutput, 0));
  CHECK(sums.stats.abs_max == 11);  // 1 * 3 + 2 * 4
  CHECK(output.stats.abs_max == 111);
  CHECK(sums.error.compared == 0);  // the reference has no bare sum to compare with
  CHECK(output.error.compared == 1);
}

namespace {

int rounded_products = 0;  // calls of the set's entry

const KernelSet& kernels_that_count_rounded_products() {
  static const KernelSet set = [] {
    KernelSet counting = active_kernels();
    counting.f32.rounded_gemm = [](const RoundedGemmArgs<float>& args) {
      ++rounded_products;
      rounded_gemm(active_kernels().f32, args);
    };
    return counting;
  }();
  return set;
}

}  // namespace

TEST_CASE("a product is rounded by its own kernel where nothing reads the sums in between") {
  struct Case {
    const char* policy;
    bool bias, samples_sums, measures;
    int products;
  };
  for (const Case& c :
       {Case{"torch-autocast-fp16", false, false, true, 2},  // y and dw
        Case{"torch-autocast-fp16", true, false, true, 1},   // dw: b is added to y
        Case{"torch-autocast-fp16", false, true, true, 0},
        Case{"torch-autocast-fp16", false, true, false, 2},  // samples none
        Case{"pure-fp16", false, false, true, 0},            // its sums have records
        Case{"pure-fp16", false, false, false, 2}, Case{"fp32", false, false, true, 2},
        Case{"fp32", false, false, false, 0}}) {  // no rounding follows
    CAPTURE(c.policy);
    CAPTURE(c.bias);
    CAPTURE(c.samples_sums);
    CAPTURE(c.measures);
    const Graph graph = small_graph(5, 40, 7, c.bias);
    const SiteTable sites = make_sites(graph, 0);
    TestLane reference(graph, sites, "fp32");
    TestLane lane(graph, sites, c.policy, false, kernels_that_count_rounded_products);
    for (TestLane* one : {&reference, &lane}) {
      if (c.bias) one->bind("p:fc.bias", random_tensor({7}, 4, 1));
      bind_random(*one, 1, 1);
      one->executor.begin_step({}, 1, {.sample_sums = c.samples_sums});
      if (!c.measures) one->records.clear();
    }
    rounded_products = 0;
    run_all(lane, &reference);
    CHECK(rounded_products == c.products);
  }
}

TEST_CASE("a product that is rounded by its own kernel has the records of the two steps") {
  const Graph graph = small_graph(5, 40, 7);
  const SiteTable sites = make_sites(graph, 0);
  std::vector<SiteRecord> records[2];
  for (const bool samples_sums : {false, true}) {  // in two steps
    TestLane reference(graph, sites, "fp32"), lane(graph, sites, "torch-autocast-fp16");
    for (TestLane* one : {&reference, &lane}) {
      bind_random(*one, 1, 1);
      one->executor.begin_step({}, 1, {.sample_sums = samples_sums});
    }
    run_all(lane, &reference);
    records[samples_sums ? 1 : 0] = lane.records;
  }
  uint64_t inexact = 0;
  for (const Site& site : sites.sites) {
    CAPTURE(site.label());
    const TensorStats &at_once = records[0][site.id].stats, &in_steps = records[1][site.id].stats;
    CHECK(at_once.inexact == in_steps.inexact);
    CHECK(at_once.bits_hash == in_steps.bits_hash);
    CHECK(at_once.sum_sq == in_steps.sum_sq);
    CHECK(at_once.round_err_sq == in_steps.round_err_sq);
    CHECK(records[0][site.id].error.err_sq == records[1][site.id].error.err_sq);
    if (site.point == Point::kOutput) inexact += at_once.inexact;
  }
  CHECK(inexact > 0);
}

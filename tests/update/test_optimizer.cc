// The optimizer table: hand-checked steps, argument checks, and the arithmetic of unscaling.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "src/core/error.h"
#include "src/update/optimizers.h"
#include "src/update/orthogonal.h"
#include "src/update/parameter_groups.h"

using namespace lockstep;

namespace {

// One weight, stepped through the table as a lane would.
struct OneWeight {
  explicit OneWeight(const OptimizerSpec& spec)
      : optimizer(find_optimizer(spec.name)), numbers(numbers_of(spec)) {}

  double step(double gradient) {
    OptimizerArrays<double> call;
    call.count = 1;
    call.weight = &weight;
    call.grad = &gradient;
    call.state_count = static_cast<int>(optimizer.states(numbers, {1}).size());
    for (int k = 0; k < call.state_count; ++k) call.states[k] = &states[k];
    call.update = &update;
    call.step = ++steps;
    const Format* fp64 = &find_format("fp64");
    call.formats = {fp64, fp64, fp64, Rounding::kNearestEven, {}};
    optimizer_step(active_kernels(), optimizer, numbers, numbers["lr"], call, &stats);
    return weight;
  }

  const Optimizer& optimizer;
  HyperNumbers numbers;
  double weight = 1, update = 0;
  double states[kMaxOptimizerStates] = {};
  int64_t steps = 0;
  UpdateStats stats;
};

OptimizerSpec spec_of(std::string name, double lr) {
  return {std::move(name), {{"lr", lr}}};
}

// Relative: some ten operations, each within one unit roundoff of FP64.
bool close(double a, double b) {
  return std::fabs(a - b) <= 16 * std::ldexp(1.0, -53) * std::fabs(b);
}

}  // namespace

TEST_CASE("sgd: momentum starts from the first gradient, then accumulates") {
  OptimizerSpec spec = spec_of("sgd", 0.25);
  spec.values["momentum"] = 0.5;
  OneWeight w(spec);
  CHECK(w.step(0.5) == 0.875);  // buf 0.5
  CHECK(w.update == -0.125);
  CHECK(w.step(0.25) == 0.75);  // buf 0.5 * 0.5 + 0.25 = 0.5
  CHECK(w.states[0] == 0.5);
}

TEST_CASE("sgd: weight decay is added to the gradient; without momentum there is no state") {
  OptimizerSpec spec = spec_of("sgd", 0.25);
  spec.values["momentum"] = 0;
  spec.values["weight_decay"] = 0.5;
  OneWeight w(spec);
  CHECK(state_count(spec) == 0);
  CHECK(w.step(0.5) == 0.75);  // g = 0.5 + 0.5 * 1
  CHECK(w.stats.count == 1);
  CHECK(w.stats.update_sq == 0.0625);
  CHECK(w.stats.weight_sq == 1);
  CHECK(w.stats.stagnant == 0);
}

TEST_CASE("adam: the first step is lr sign(g) when eps is 0, whatever the betas") {
  OptimizerSpec spec = spec_of("adam", 0.125);
  spec.values["eps"] = 0;
  OneWeight up(spec), down(spec);
  CHECK(close(down.step(3.0), 0.875));
  CHECK(close(up.step(-0.001), 1.125));
}

TEST_CASE("adam adds weight decay to the gradient, adamw shrinks the weight") {
  OptimizerSpec spec = spec_of("adam", 0.125);
  spec.values["eps"] = 0;
  spec.values["weight_decay"] = 0.5;
  OneWeight adam(spec);
  CHECK(close(adam.step(1.0), 0.875));  // sign(1 + 0.5 * 1): no change
  spec.name = "adamw";
  REQUIRE(numbers_of(spec)["weight_decay"] == 0.5);
  OneWeight adamw(spec);
  CHECK(close(adamw.step(1.0), 1 - 0.125 * 0.5 - 0.125));
}

TEST_CASE("adam: the second step follows the bias-corrected moments") {
  OptimizerSpec spec = spec_of("adam", 0.125);
  OneWeight w(spec);
  const double g1 = 0.5, g2 = -0.25;
  const double first = w.step(g1);
  const double beta1 = w.numbers["beta1"], beta2 = w.numbers["beta2"];
  const double m = beta1 * (1 - beta1) * g1 + (1 - beta1) * g2;
  const double v = beta2 * (1 - beta2) * g1 * g1 + (1 - beta2) * g2 * g2;
  const double m_hat = m / (1 - beta1 * beta1);
  const double v_hat = v / (1 - beta2 * beta2);
  const double expected = first - w.numbers["lr"] * m_hat / (std::sqrt(v_hat) + w.numbers["eps"]);
  // 1 - beta2^2 cancels about nine bits of beta2^2: its error is 2^9 unit roundoffs.
  CHECK(std::fabs(w.step(g2) - expected) <= 512 * 16 * std::ldexp(1.0, -53));
}

TEST_CASE("FP16 arithmetic rounds adam's eps of 1e-8 to zero: a zero gradient gives 0/0") {
  const OptimizerSpec spec = spec_of("adam", 0.125);
  const Format* fp16 = &find_format("fp16");
  float weight = 1, gradient = 0, update = 0, m = 0, v = 0;
  OptimizerArrays<float> call;
  call.count = 1;
  call.weight = &weight;
  call.grad = &gradient;
  call.state_count = 2;
  call.states = {&m, &v};
  call.update = &update;
  call.formats = {fp16, fp16, fp16, Rounding::kNearestEven, {}};
  UpdateStats stats;
  optimizer_step(active_kernels(), find_optimizer("adam"), numbers_of(spec), 0.125, call, &stats);
  CHECK(std::isnan(weight));
}

TEST_CASE("unscaling multiplies by the double reciprocal, rounded to FP32") {
  CHECK(unscale_factor(65536) == std::ldexp(1.0f, -16));
  CHECK(unscale_factor(3) == static_cast<float>(1.0 / 3.0));
  // For scales up to 2^-128 the reciprocal is beyond FP32.
  CHECK(std::isfinite(unscale_factor(std::ldexp(1.0f, -127))));
  CHECK(std::isinf(unscale_factor(std::ldexp(1.0f, -128))));
}

TEST_CASE("muon: the classic iteration ends in an orthogonal matrix, whichever side is longer") {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2, 3}, {3, 2}}) {
    std::vector<double> x = {3, -1, 0.5, 0.25, 2, 4};
    orthogonalize(
        active_kernels(), x.data(), rows, columns,
        {.a = 1.5, .b = -0.5, .c = 0, .eps = 1e-7, .steps = 40, .format = &find_format("fp64")});
    const int64_t shorter = std::min(rows, columns);
    for (int64_t i = 0; i < shorter; ++i) {
      for (int64_t j = 0; j < shorter; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < 3; ++k) {
          dot += rows < columns ? x[i * columns + k] * x[j * columns + k]
                                : x[k * columns + i] * x[k * columns + j];
        }
        CHECK(std::fabs(dot - (i == j)) < 1e-12);
      }
    }
  }
}

TEST_CASE("muon takes matrices alone; its groups leave the others to the next optimizer") {
  const std::vector<ParameterGroup> groups = {{"*", {"muon", {}}}};
  const Parameter matrix{"fc.weight", {{4, 8}, ElementType::kFloat}, true, "fc"};
  const Parameter vector{"fc.bias", {{4}, ElementType::kFloat}, true, "fc"};
  CHECK(group_of(matrix, groups) == 1);
  CHECK(group_of(vector, groups) == 0);
  Graph graph;
  graph.parameters = {matrix, vector};
  CHECK_NOTHROW(check_groups(graph, {"adamw", {}}, groups));
  CHECK_THROWS_WITH_AS(check_groups(graph, {"muon", {}}, {}),
                       doctest::Contains("parameter 'fc.bias' is no matrix"), InputError);
}

TEST_CASE("adafactor keeps a number for each row and each column of a matrix, all of a vector") {
  const OptimizerSpec spec{"adafactor", {}};
  const auto shapes = [&](const Shape& weight) {
    std::string text;
    for (const OptimizerState& state :
         find_optimizer("adafactor").states(numbers_of(spec), weight)) {
      text += std::string(state.name) + to_string(state.shape_for(weight)) + " ";
    }
    return text;
  };
  CHECK(shapes({4, 3}) == "row_var[4, 1] col_var[1, 3] ");
  CHECK(shapes({5, 2, 4, 3}) == "row_var[5, 2, 4, 1] col_var[5, 2, 1, 3] ");
  CHECK(shapes({7}) == "variance[7] ");
}

TEST_CASE("adafactor's first step of a matrix, by hand") {
  // g^2 = 1 4 / 16 4: rows 2.5 and 10, columns 8.5 and 4, their mean 6.25; t^-0.8 = 1.
  double w[] = {1, 1, 1, 1}, g[] = {1, 2, 4, 2}, rows[2] = {}, columns[2] = {};
  const Shape shape = {2, 2};
  const Format* fp64 = &find_format("fp64");
  OptimizerArrays<double> call;
  call.count = 4;
  call.shape = shape;
  call.weight = w;
  call.grad = g;
  call.state_count = 2;
  call.states = {rows, columns};
  call.formats = {fp64, fp64, fp64, Rounding::kNearestEven, {}};
  const OptimizerSpec spec{"adafactor", {{"lr", 0.5}, {"d", 4}}};
  optimizer_step(active_kernels(), find_optimizer("adafactor"), numbers_of(spec), 0.5, call,
                 nullptr);
  CHECK(close(rows[0], 2.5));
  CHECK(close(rows[1], 10));
  CHECK(close(columns[0], 8.5));
  CHECK(close(columns[1], 4));
  CHECK(close(w[0], 1 - 0.5 * 1 / std::sqrt(2.5 * 8.5 / 6.25)));
  CHECK(close(w[3], 1 - 0.5 * 2 / std::sqrt(10 * 4 / 6.25)));
}

TEST_CASE("optimizers are found by name; unknown ones and bad values are refused") {
  for (const Optimizer& optimizer : optimizers()) {
    CHECK(&find_optimizer(optimizer.name) == &optimizer);
    HyperValues all;  // every number at its largest: the largest number of states
    for (const HyperParameter& p : optimizer.parameters) {
      CHECK_NOTHROW(
          check_optimizer_spec({std::string(optimizer.name), {{std::string(p.name), p.initial}}}));
      all[std::string(p.name)] = 1;
    }
    CHECK(state_count({std::string(optimizer.name), all}) <= kMaxOptimizerStates);
  }
  CHECK_THROWS_WITH_AS(find_optimizer("adamv"), doctest::Contains("did you mean"), InputError);
  OptimizerSpec spec = spec_of("sgd", std::nan(""));
  spec.values["momentum"] = 1;
  spec.values["beta2"] = 0.5;  // adam's
  try {
    check_optimizer_spec(spec);
    FAIL("not refused");
  } catch (const InputError& error) {
    CHECK(error.problems().size() == 3);  // all at once
  }
  CHECK_NOTHROW(check_optimizer_spec({"sgd", {}}));
  CHECK_NOTHROW(check_optimizer_spec({"muon", {{"ns_steps", 99}}}));
  CHECK_THROWS_WITH_AS(check_optimizer_spec({"muon", {{"ns_steps", 100}}}),
                       doctest::Contains("1 <= ns_steps < 100 required"), InputError);
  const OptimizerSpec nesterov{"sgd", {{"nesterov", 1}, {"dampening", 0.5}}};
  CHECK_THROWS_WITH_AS(check_optimizer_spec(nesterov), doctest::Contains("dampening = 0 required"),
                       InputError);
}

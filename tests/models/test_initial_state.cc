// Initial states are torch.nn's distributions, and a pure function of the seed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "src/models/model.h"

using namespace lockstep;

namespace {

Graph lenet_graph() {
  return find_model("lenet").build({64, {1, 28, 28}, 10}, true);
}

}  // namespace

TEST_CASE("initial state: torch.nn's distributions for every name and no others") {
  const Graph graph = lenet_graph();
  const auto state = initial_state(find_model("lenet"), {}, graph, 1);
  CHECK(state.size() == graph.parameters.size() + graph.buffers.size());
  for (const Parameter& parameter : graph.parameters) {
    REQUIRE(state.count(parameter.name) == 1);
    CHECK(state.at(parameter.name).shape() == parameter.type.shape);
  }
  const auto all_equal = [&](const std::string& name, float value) {
    const auto values = state.at(name).as<float>();
    return std::all_of(values.begin(), values.end(), [=](float x) { return x == value; });
  };
  CHECK(all_equal("bn1.weight", 1));
  CHECK(all_equal("bn1.bias", 0));
  CHECK(all_equal("bn2.running_mean", 0));
  CHECK(all_equal("bn2.running_var", 1));

  // Uniform in +-1/sqrt(fan_in): inside the bound, mean 0, second moment bound^2 / 3, within 5
  // sigma.
  const std::vector<std::pair<std::string, int64_t>> fan_ins = {
      {"conv1.weight", 25}, {"conv1.bias", 25}, {"conv2.weight", 150}, {"conv2.bias", 150},
      {"fc1.weight", 400},  {"fc1.bias", 400},  {"fc2.weight", 120},   {"fc2.bias", 120},
      {"fc3.weight", 84},   {"fc3.bias", 84}};
  for (const auto& [name, fan_in] : fan_ins) {
    CAPTURE(name);
    const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
    double sum = 0, sum_sq = 0, largest = 0;
    const auto values = state.at(name).as<float>();
    for (const double x : values) {
      sum += x, sum_sq += x * x;
      largest = std::max(largest, std::abs(x));
    }
    const double n = static_cast<double>(values.size());
    CHECK(largest <= static_cast<double>(static_cast<float>(bound)));
    // Var(x) = b^2 / 3, Var(x^2) = b^4 (1/5 - 1/9) = b^4 4 / 45.
    CHECK(std::abs(sum / n) <= 5 * bound / std::sqrt(3 * n));
    CHECK(std::abs(sum_sq / n - bound * bound / 3) <= 5 * bound * bound * std::sqrt(4 / (45 * n)));
  }
}

TEST_CASE("initial state: a pure function of the seed, golden, independent of the batch size") {
  const Graph graph = lenet_graph();
  const auto one = initial_state(find_model("lenet"), {}, graph, 1),
             again = initial_state(find_model("lenet"), {}, graph, 1);
  const auto small = initial_state(find_model("lenet"), {},
                                   find_model("lenet").build({2, {1, 28, 28}, 10}, false), 1);
  const auto two = initial_state(find_model("lenet"), {}, graph, 2);
  for (const auto& [name, tensor] : one) {
    CHECK(tensor.same_bits(again.at(name)));
    CHECK(tensor.same_bits(small.at(name)));
  }
  CHECK_FALSE(one.at("fc1.weight").same_bits(two.at("fc1.weight")));
  // Parameters with equal bounds (fan_in 25) get different numbers.
  CHECK_FALSE(one.at("conv1.bias").as<float>()[0] == one.at("conv1.weight").as<float>()[0]);
  // Golden: a change here changes every run of every seed.
  const auto weight = one.at("conv1.weight").as<float>();
  CHECK(std::vector<float>(weight.begin(), weight.begin() + 2) ==
        std::vector<float>{-0.189019099f, -0.0960791409f});
  CHECK(one.at("fc3.bias").as<float>()[9] == -0.0830964595f);
}

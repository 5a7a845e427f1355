// Every kernel set's optimizers have the bits of the scalar loop.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

struct RuleCase {
  const char* name;
  UpdateRule rule;
  int state_count;
};

std::vector<RuleCase> rule_cases() {
  const auto adam = [](double beta1, double decay, bool decoupled, bool amsgrad) {
    return AdamRule{.lr = 0.01,
                    .weight_decay = decay,
                    .decoupled_weight_decay = decoupled,
                    .beta1 = beta1,
                    .beta2 = 0.99,
                    .eps = 1e-8,
                    .amsgrad = amsgrad};
  };
  const auto rmsprop = [](double momentum, bool centered) {
    return RmspropRule{
        .lr = 0.01, .alpha = 0.9, .eps = 1e-8, .momentum = momentum, .centered = centered};
  };
  return {
      {"sgd", SgdRule{.lr = 0.1}, 0},
      {"sgd with decay", SgdRule{.lr = 0.1, .weight_decay = 0.01}, 0},
      {"sgd with momentum", SgdRule{.lr = 0.1, .momentum = 0.9}, 1},
      {"sgd, nesterov, decay",
       SgdRule{.lr = 0.1, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true}, 1},
      {"sgd, dampened, decoupled decay",
       SgdRule{.lr = 0.1,
               .weight_decay = 0.01,
               .decoupled_weight_decay = true,
               .momentum = 0.9,
               .dampening = 0.5},
       1},
      {"adam", adam(0.9, 0, false, false), 2},
      {"adam, beta1 0.25, decay", adam(0.25, 0.01, false, false), 2},
      {"adamw", adam(0.9, 0.01, true, false), 2},
      {"adam, amsgrad", adam(0.9, 0, false, true), 3},
      {"adagrad", AdagradRule{.lr = 0.1, .lr_decay = 0.1, .eps = 1e-10}, 1},
      {"rmsprop", rmsprop(0, false), 1},
      {"rmsprop, momentum", rmsprop(0.9, false), 2},
      {"rmsprop, centered", rmsprop(0, true), 2},
      {"rmsprop, centered, momentum", rmsprop(0.9, true), 3},
      {"lion", LionRule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99}, 1},
  };
}

// What one step writes.
template <typename T>
struct Outcome {
  std::vector<T> weight, update, states[kMaxOptimizerStates];
  UpdateStats stats;
};

// Weights of every kind: zeros of both signs, equal updates, subnormals, infinities and NaN.
template <typename T>
void plant_special_values(std::vector<T>& values, size_t first) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T(0),
                       -T(0),
                       Limits::denorm_min(),
                       -Limits::min(),
                       Limits::max(),
                       -Limits::max(),
                       Limits::infinity(),
                       -Limits::infinity(),
                       -Limits::quiet_NaN()};
  for (size_t i = first, k = 0; i < values.size(); i += 7, ++k) {
    values[i] = special[k % std::size(special)];
  }
}

template <typename T>
Outcome<T> step_by(const KernelSet& set, const RuleCase& of, int64_t count, int64_t step,
                   bool special, bool wants_update, bool wants_stats) {
  const Format& format = find_format(std::is_same_v<T, float> ? "fp32" : "fp64");
  Outcome<T> out;
  out.weight = make_data<T>(static_cast<size_t>(count), DataKind::kSmall, format, 1);
  auto grad = make_data<T>(static_cast<size_t>(count), DataKind::kSmall, format, 2);
  for (int k = 0; k < of.state_count; ++k) {
    out.states[k] = make_data<T>(static_cast<size_t>(count), DataKind::kSmall, format,
                                 static_cast<uint32_t>(3 + k));
    // Averages of squares. Some gradients vanish, so that weights may stay.
    for (T& x : out.states[k]) x = std::abs(x);
  }
  for (size_t i = 0; i < grad.size(); i += 5) grad[i] = i % 2 == 0 ? T(0) : T(1e-30);
  if (special) {
    plant_special_values(out.weight, 0);
    plant_special_values(grad, 1);
    for (int k = 0; k < of.state_count; ++k) {
      plant_special_values(out.states[k], static_cast<size_t>(2 + k));
    }
  }
  if (wants_update) out.update.resize(static_cast<size_t>(count));
  OptimizerArrays<T> a{
      .count = count,
      .weight = out.weight.data(),
      .grad = grad.data(),
      .state_count = of.state_count,
      .update = wants_update ? out.update.data() : nullptr,
      .step = step,
      .formats = {.arithmetic = &format, .state = &format, .weight = &format, .key = {}}};
  for (int k = 0; k < of.state_count; ++k) a.states[static_cast<size_t>(k)] = out.states[k].data();
  set.of<T>().optimizer(of.rule, a, wants_stats ? &out.stats : nullptr);
  return out;
}

// NaNs are one value: sums of squares have no canonical one.
bool same_sum(double x, double y) {
  return x == y || (std::isnan(x) && std::isnan(y));
}

template <typename T>
int64_t compare_sets() {
  int64_t cases = 0;
  for (const RuleCase& of : rule_cases()) {
    for (const int64_t count : {1, 15, 16, 17, 33, 4095, 4097, 9000}) {
      for (const int64_t step : {1, 2}) {
        for (const int choice : {0, 1, 2, 3, 4, 5}) {
          const bool special = choice % 2 == 1, update = choice < 4, stats = choice / 2 != 1;
          const auto wanted = step_by<T>(scalar_kernels(), of, count, step, special, update, stats);
          for (const KernelSet* set : available_kernel_sets()) {
            CAPTURE(set->name);
            CAPTURE(std::string(of.name));
            CAPTURE(count);
            CAPTURE(choice);
            const auto got = step_by<T>(*set, of, count, step, special, update, stats);
            REQUIRE(same_bits(got.weight, wanted.weight));
            REQUIRE(same_bits(got.update, wanted.update));
            for (int k = 0; k < of.state_count; ++k) {
              REQUIRE(same_bits(got.states[k], wanted.states[k]));
            }
            REQUIRE(got.stats.stagnant == wanted.stats.stagnant);
            REQUIRE(got.stats.count == wanted.stats.count);
            REQUIRE(same_sum(got.stats.update_sq, wanted.stats.update_sq));
            REQUIRE(same_sum(got.stats.weight_sq, wanted.stats.weight_sq));
            REQUIRE(same_sum(got.stats.stagnant_sq, wanted.stats.stagnant_sq));
            ++cases;
          }
        }
      }
    }
  }
  return cases;
}

}  // namespace

// Arrays that the vectors do not cover: the sets must give them to the scalar loop.
TEST_CASE("optimizers: every kernel set follows formats, roundings, Kahan and measurements") {
  constexpr int64_t kCount = 33;
  const Format &fp32 = find_format("fp32"), &bf16 = find_format("bf16");
  const StochasticKey key{.seed = 1};
  OptimizerFormats plain{.arithmetic = &fp32, .state = &fp32, .weight = &fp32, .key = key};
  OptimizerFormats narrow_weight = plain, narrow_state = plain, narrow_steps = plain,
                   random_weight = plain, truncated = plain;
  narrow_weight.weight = &bf16;
  narrow_state.state = &bf16;
  narrow_steps.arithmetic = &bf16;
  random_weight.weight = &bf16, random_weight.rounding = Rounding::kStochastic;
  truncated.rounding = Rounding::kTowardZero;
  const AdamRule rule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  struct Result {
    std::vector<float> weight, m, v, lost;
    TensorStats of_weight;
  };
  const auto run = [&](const KernelSet& set, const OptimizerFormats& formats, bool kahan,
                       bool measures) {
    Result r{.weight = make_data<float>(kCount, DataKind::kSmall, bf16, 1),
             .m = make_data<float>(kCount, DataKind::kSmall, bf16, 2),
             .v = make_data<float>(kCount, DataKind::kSmall, bf16, 3),
             .lost = std::vector<float>(kCount, 0x1p-12f),
             .of_weight = {}};
    for (float& x : r.v) x = std::abs(x);
    const auto grad = make_data<float>(kCount, DataKind::kSmall, bf16, 4);
    OptimizerArrays<float> a{.count = kCount,
                             .weight = r.weight.data(),
                             .grad = grad.data(),
                             .state_count = 2,
                             .compensation = kahan ? r.lost.data() : nullptr,
                             .step = 2,
                             .formats = formats};
    a.states = {r.m.data(), r.v.data(), nullptr};
    if (measures) a.measured.weight = &r.of_weight;
    set.f32.optimizer(rule, a, nullptr);
    return r;
  };
  const Result vectors = run(*available_kernel_sets().back(), plain, false, false);
  for (const auto* formats :
       {&plain, &narrow_weight, &narrow_state, &narrow_steps, &random_weight, &truncated}) {
    for (const bool kahan : {false, true}) {
      for (const bool measures : {false, true}) {
        const Result want = run(scalar_kernels(), *formats, kahan, measures);
        if (formats != &plain) {  // else the case would show nothing
          CHECK_FALSE((same_bits(want.weight, vectors.weight) && same_bits(want.m, vectors.m) &&
                       same_bits(want.v, vectors.v)));
        }
        for (const KernelSet* set : available_kernel_sets()) {
          const Result got = run(*set, *formats, kahan, measures);
          CHECK(same_bits(got.weight, want.weight));
          CHECK(same_bits(got.m, want.m));
          CHECK(same_bits(got.v, want.v));
          CHECK(same_bits(got.lost, want.lost));
          CHECK(got.of_weight.count == (measures ? kCount : 0));
          CHECK(got.of_weight.bits_hash == want.of_weight.bits_hash);
        }
      }
    }
  }
}

TEST_CASE("optimizers: every kernel set gives the scalar bits") {
  const int64_t cases = compare_sets<float>() + compare_sets<double>();
  CHECK(cases ==
        static_cast<int64_t>(2 * rule_cases().size() * 8 * 2 * 6 * available_kernel_sets().size()));
}

}  // namespace lockstep

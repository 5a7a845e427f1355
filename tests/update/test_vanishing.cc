// Numbers of an optimizer that a policy's formats lose: each at its limit, and just past it.
#include "src/update/vanishing.h"

#include <doctest/doctest.h>

#include "src/policy/find_policy.h"
#include "tests/policy/write_policy.h"

using namespace lockstep;

namespace {

std::vector<std::string> found(const std::string& policy, const std::string& optimizer,
                               HyperValues values) {
  const OptimizerSpec own{optimizer, std::move(values)};
  return vanishing_constants(find_policy(policy), optimizer_groups(own, {}), {""});
}

bool has(const std::vector<std::string>& texts, std::string_view part) {
  for (const std::string& text : texts) {
    if (text.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("Adam's eps in FP16: 2^-25 is half the smallest number and lost, more is not") {
  CHECK(has(found("pure-fp16", "adam", {}), "eps = 1e-08 is 0 in fp16"));
  CHECK(has(found("pure-fp16", "adam", {{"eps", 0x1p-25}}), "eps"));
  CHECK_FALSE(has(found("pure-fp16", "adam", {{"eps", 0x1.1p-25}}), "eps"));
  CHECK_FALSE(has(found("pure-fp16", "adam", {{"eps", 0}}), "eps"));
  CHECK(has(found("half", "adam", {}), "eps"));  // torch's steps
  CHECK_FALSE(has(found("pure-fp16-master", "adam", {}), "eps"));
  CHECK_FALSE(has(found("pure-bf16", "adam", {}), "eps"));
  CHECK_FALSE(has(found("pure-fp16", "sgd", {}), "eps"));
  CHECK(found("fp32", "adam", {}).empty());
}

TEST_CASE("lr: lost if it is rounded to the format") {
  CHECK(has(found("pure-fp16", "sgd", {{"lr", 1e-8}}), "lr = 1e-08 is 0 in fp16"));
  CHECK_FALSE(has(found("pure-fp16", "sgd", {{"lr", 1e-7}}), "lr"));
  CHECK_FALSE(has(found("half", "adam", {{"lr", 1e-8}}), "lr = "));  // torch's scalar is FP32
}

TEST_CASE("decoupled weight decay: 1 - lr wd is 1 from lr wd = 2^-(p+1) down") {
  const auto adamw = [](const char* policy, double lr, double decay) {
    return found(policy, "adamw", {{"lr", lr}, {"weight_decay", decay}, {"eps", 1}});
  };
  CHECK(has(adamw("pure-fp16", 0x1p-6, 0x1p-6), "is 1 in fp16: weights never decay"));
  CHECK(adamw("pure-fp16", 0x1p-6, 0x1.1p-6).empty());
  CHECK(has(adamw("fp32", 0x1p-15, 0x1p-10), "is 1 in fp32: weights never decay"));
  CHECK(adamw("fp32", 0x1p-14, 0x1p-10).empty());
  // FP32 arithmetic with FP16 weights: the product is not 0, but the weight's rounding loses it.
  const std::string wide =
      write_policy("wide", "extends = \"pure-fp16:1\"\n[optimizer]\narithmetic = \"fp32\"\n");
  CHECK(has(adamw(wide.c_str(), 0x1p-6, 0x1p-6), "is 1 in fp16: decay alone changes no weight"));
  CHECK(adamw("pure-fp16-stochastic", 0x1p-6, 0x1p-6).empty());
  CHECK(adamw("pure-fp16-master", 0x1p-6, 0x1p-6).empty());
}

TEST_CASE("coupled weight decay: SGD's, with the gain of its momentum") {
  const HyperValues values = {{"lr", 0x1p-6}, {"weight_decay", 0x1p-6}, {"momentum", 0}};
  CHECK(has(found("pure-fp16", "sgd", values), "decay alone changes no weight"));
  HyperValues gained = values;
  gained["momentum"] = 0.5;
  CHECK(found("pure-fp16", "sgd", gained).empty());
  gained["dampening"] = 0.5;
  CHECK(has(found("pure-fp16", "sgd", gained), "decay alone changes no weight"));
  CHECK(has(found("pure-fp16", "adagrad", {{"weight_decay", 1e-9}, {"eps", 1}}),
            "weight_decay = 1e-09 is 0 in fp16"));
  CHECK(found("pure-fp16", "adagrad", {{"weight_decay", 1e-5}, {"eps", 1}}).empty());
}

TEST_CASE("averages: 0.999 is 1 in BF16 and not in FP16") {
  CHECK(has(found("pure-bf16", "adam", {}), "beta2 = 0.999 is 1 in bf16"));
  CHECK_FALSE(has(found("pure-fp16", "adam", {}), "beta2"));
  CHECK_FALSE(has(found("pure-bf16", "adam", {{"beta1", 0.999}}), "beta1"));
  CHECK(has(found("pure-bf16", "lion", {{"beta1", 0.999}}), "beta1 = 0.999 is 1 in bf16"));
  CHECK(has(found("pure-bf16", "rmsprop", {{"alpha", 0.999}}), "alpha = 0.999"));
}

TEST_CASE("texts begin with their group's name") {
  const auto groups = optimizer_groups({"sgd", {}}, {{"fc1", {"adam", {}}}});
  const auto texts = vanishing_constants(find_policy("pure-fp16"), groups, {"", "second"});
  REQUIRE(texts.size() == 1);
  CHECK(texts[0].starts_with("second: eps = 1e-08 is 0 in fp16"));
}

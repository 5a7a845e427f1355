// What roundings do to the loss, to first order, against what the lane's loss really does.
#include "src/execute/loss_effect.h"

#include <limits>

#include "tests/train/small_runs.h"

using namespace lockstep;

TEST_CASE("errors and effects by hand: lost digits, left range, not finite") {
  const Format& fp16 = find_format("fp16");
  const std::vector<float> before = {1.25F, 1e-9F, 70000.0F, 80000.0F};
  const std::vector<float> after = {1.0F, 0.0F, 65504.0F, std::numeric_limits<float>::infinity()};
  const RoundingErrors errors = rounding_errors(before, after, fp16);
  CHECK(errors.error == std::vector<float>{-0.25F, -1e-9F, -4496.0F, 0.0F});
  CHECK(errors.left_range == std::vector<bool>{false, true, true, false});
  const LossEffect effect = loss_effect(errors, std::vector<float>{2, 0, 1, 3});
  CHECK(effect.rounding == -0.5);
  CHECK(effect.range == -4496);
}

namespace {

struct FirstStep {
  double difference = 0, weighed = 0, of_range = 0;
  int sites = 0;
};

// The first step of lane 1, which begins with the reference's weights.
FirstStep first_step(RunOptions options) {
  Recorder recorder;
  run(options, recorder);
  const auto& lanes = recorder.steps.front().lanes;
  FirstStep out{.difference = lanes[1].loss - lanes[0].loss};
  for (const SiteRecord& site : lanes[1].sites) {
    out.weighed += site.effect.rounding + site.effect.range;
    out.of_range += site.effect.range;
    out.sites += site.effect.rounding != 0;
  }
  for (const SiteRecord& site : lanes[0].sites) CHECK(site.effect.rounding == 0);
  return out;
}

}  // namespace

TEST_CASE("to first order, the effects of all roundings add up to the difference of the losses") {
  // The first layer reads the inputs, whose derivatives are not computed. What is left are terms of
  // second order: u^2 against u, so the two agree to some octaves.
  for (const char* format : {"bf16", "fp16"}) {
    CAPTURE(format);
    const std::string policy = write_policy(
        std::string("weighed-") + format,
        std::string("extends = \"torch-autocast-") + format +
            "\"\n[loss_scale]\nkind = \"none\"\n[[rule]]\nlayer = \"fc1\"\ncompute = \"fp32\"\n");
    RunOptions options = small_run({"fp32", policy}, 1);
    const FirstStep found = first_step(options);
    CHECK(found.sites >= 4);
    CHECK(found.difference != 0);
    CHECK(found.weighed == doctest::Approx(found.difference).epsilon(0.1));
    CHECK(std::fabs(found.of_range) <= 0.1 * std::fabs(found.weighed));
    // Micro-batches: their means add up.
    options.accumulate = 2;
    const FirstStep merged = first_step(options);
    CHECK(merged.weighed == doctest::Approx(merged.difference).epsilon(0.1));
    options.measuring.sums_every = 0;
    CHECK(first_step(options).sites == 0);
  }
}

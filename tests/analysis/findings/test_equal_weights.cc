// A lane in the step that it begins with the reference's weights, from errors written by hand.
#include "analysis/findings/equal_weights.h"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "analysis/findings/finding_kinds.h"
#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

using testing::clean_step;
using testing::site;

// 0, 1 results of two linear layers -> 2, 3 operands of a difference -> 4 the difference -> 5 the
// loss; 6 the weight gradient
SiteTable difference() {
  SiteTable table{
      {site(0, "fc1", "linear", Role::kActivation, {}),
       site(1, "fc2", "linear", Role::kActivation, {}),
       site(2, "sub", "sub", Role::kActivation, {0}), site(3, "sub", "sub", Role::kActivation, {1}),
       site(4, "sub", "sub", Role::kActivation, {2, 3}), site(5, "mean", "mean", Role::kLoss, {4}),
       site(6, "fc1", "linear_backward_weight", Role::kGradWeight, {5})}};
  for (const size_t operand : {2, 3}) table.sites[operand].point = Point::kOperand;
  for (const size_t one : {2, 3}) table.sites[one].node = table.sites[4].node;
  return table;
}
constexpr size_t kSites = 7;

void set_error(SiteRecord& record, double error, double size = 1) {
  const double count = static_cast<double>(record.stats.count);
  record.error.compared = record.stats.count;
  record.error.ref_sq = count * size * size;
  record.error.err_sq = record.error.ref_sq * error * error;
}

struct Step {
  LaneStep own, reference, twin;
  Step() {
    for (LaneStep* lane : {&own, &reference, &twin}) {
      lane->loss = 1;
      lane->sites = clean_step(kSites);
      for (SiteRecord& record : lane->sites) set_error(record, 0);
    }
  }
  // x - y, nearly equal, of results that were rounded to 16 bits; the loss is theirs.
  void cancel() {
    own.loss = 1.2;
    for (const size_t i : {0, 1, 2, 3}) set_error(own.sites[i], 2e-3);
    own.sites[0].stats.round_err_sq = own.sites[0].error.err_sq;  // all of fc1's error
    set_error(own.sites[1], 1e-4);
    set_error(own.sites[3], 1e-4);
    set_error(own.sites[4], 0.5, 1.0 / 256);
    set_error(own.sites[5], 0.2);
    set_error(own.sites[6], 0.3);
  }
};

std::optional<Finding> wrong_in(const Step& step, const std::vector<double>& losses = {1}) {
  const SiteTable sites = difference();
  const std::vector<std::string> formats(kSites, "bf16");
  EqualWeightsTally tally(1, sites, formats);
  tally.add(0, step.own, step.reference, &step.twin);
  return tally.find(losses);
}

TEST_CASE("cancellation: the op, how much smaller its result is, and the rounding that caused it") {
  Step step;
  step.cancel();
  const auto found = wrong_in(step);
  REQUIRE(found);
  CHECK(found->kind == FindingKind::kCancellation);
  CHECK(found->text == "cancellation");
  CHECK(found->site == 4);
  CHECK(found->rounded == 0);
  CHECK(found->factor == doctest::Approx(256));
  CHECK(found->share == doctest::Approx(0.5));
  CHECK(found->value == 1.2);
  CHECK(found->limit == 1);
  const SiteTable sites = difference();
  CHECK(row_of(found->kind).sentence({*found, sites}) ==
        "sub: cancellation, 256 times smaller than its operands, wrong by 50% through rounding the "
        "result of fc1 linear to bf16; loss 1.2, fp32 1");
}

TEST_CASE("the first loss that is not finite, and the least error of the gradients, of all steps") {
  const SiteTable sites = difference();
  const std::vector<std::string> formats(kSites, "bf16");
  EqualWeightsTally tally(1, sites, formats);
  Step step;
  set_error(step.own.sites[6], 3);
  tally.add(0, step.own, step.reference, &step.twin);
  CHECK(tally.judged(std::vector<double>{1}).not_finite == -1);
  set_error(step.own.sites[6], 0.7);
  tally.add(1, step.own, step.reference, &step.twin);
  step.own.loss = NAN;
  for (const int64_t later : {2, 3}) tally.add(later, step.own, step.reference, &step.twin);
  EqualStep judged = tally.judged(std::vector<double>{1, 1, 1, 1});
  CHECK(judged.not_finite == 2);
  CHECK(judged.gradient_error == doctest::Approx(0.7));
  step.own.loss = 1;
  set_error(step.twin.sites[6], 0.1);  // more than an eighth: one ulp does as much
  tally.add(4, step.own, step.reference, &step.twin);
  CHECK(tally.judged(std::vector<double>(5, 1)).gradient_error == 0);
}

TEST_CASE("a result of its operands' size: the op amplifies") {
  Step step;
  step.cancel();
  set_error(step.own.sites[4], 0.5);
  const auto found = wrong_in(step);
  REQUIRE(found);
  CHECK(found->text == "amplification");
  CHECK(found->factor == doctest::Approx(250));
}

TEST_CASE("loss and gradients are right: nothing is found, however wrong a result is") {
  Step step;
  step.cancel();
  step.own.loss = 1.001;
  CHECK_FALSE(wrong_in(step));
  set_error(step.own.sites[6], 0.9);  // the gradients are wrong
  CHECK_FALSE(wrong_in(step));        // softmax of large logits: by half
  set_error(step.own.sites[4], 3, 1.0 / 256);
  const auto found = wrong_in(step);
  REQUIRE(found);
  CHECK(found->site == 4);
  CHECK(std::isnan(found->value));
  CHECK(found->spoilt_error == doctest::Approx(0.9));
}

TEST_CASE("a loss that is wrong alone says so, and no answer minds it") {
  Step step;
  step.cancel();
  set_error(step.own.sites[6], 0.01);
  const auto found = wrong_in(step);
  REQUIRE(found);
  CHECK_FALSE(is_grave(*found));
  const SiteTable sites = difference();
  CHECK(row_of(found->kind)
            .sentence({*found, sites})
            .ends_with("loss 1.2, fp32 1, though its gradients are right"));
  set_error(step.own.sites[6], 0.3);
  CHECK(is_grave(*wrong_in(step)));
}

TEST_CASE("a wrong loss below the reference's is wrong, too") {
  Step step;
  step.cancel();
  step.own.loss = 0.8;
  CHECK(wrong_in(step));
}

TEST_CASE("the limit: 16 unit roundoffs of bf16, and the scatter of batches") {
  Step step;
  step.own.loss = 1 + 15.9 / 256;
  CHECK_FALSE(wrong_in(step));
  step.own.loss = 1 + 16.1 / 256;
  const auto found = wrong_in(step);
  REQUIRE(found);
  CHECK(found->kind == FindingKind::kWrongLoss);
  CHECK(found->site == -1);  // nothing was weighed
  CHECK_FALSE(wrong_in(step, {1, 4, 1}));
}

TEST_CASE("what the twin does as well is no matter of the format") {
  Step step;
  step.cancel();
  step.twin.loss = 1.1;
  CHECK_FALSE(wrong_in(step));
}

TEST_CASE("the rounding that moves the loss most is named if it explains a good part") {
  Step step;
  step.own.loss = 1.2;
  step.own.sites[1].effect.rounding = 0.15;
  step.own.sites[0].effect.rounding = -0.02;
  const auto found = wrong_in(step);
  REQUIRE(found);
  CHECK(found->site == 1);
  CHECK(found->share == doctest::Approx(0.75));
  step.own.sites[1].effect.rounding = 0.04;
  CHECK(wrong_in(step)->site == -1);
}

TEST_CASE("an operand that is wrong itself is the place to look at") {
  Step step;
  step.cancel();
  for (const size_t i : {0, 2}) set_error(step.own.sites[i], 0.3);
  set_error(step.own.sites[4], 5, 1.0 / 256);
  CHECK(wrong_in(step)->kind == FindingKind::kWrongLoss);
}

TEST_CASE("steps: the largest error is kept, and none without finite losses") {
  const SiteTable sites = difference();
  const std::vector<std::string> formats(kSites, "bf16");
  EqualWeightsTally tally(1, sites, formats);
  Step step;
  step.own.loss = NAN;
  tally.add(0, step.own, step.reference, nullptr);
  CHECK(tally.judged({}).step == -1);
  int64_t number = 0;
  for (const double loss : {1.01, 1.2, 1.1}) {
    step.own.loss = loss;
    tally.add(++number, step.own, step.reference, nullptr);
  }
  const EqualStep judged = tally.judged(std::vector<double>{1, 1, 1});
  CHECK(judged.step == 2);
  CHECK(judged.error() == doctest::Approx(0.2));
  CHECK(judged.has_wrong_loss);
  CHECK_FALSE(judged.has_wrong_gradients);
}

}  // namespace
}  // namespace lockstep

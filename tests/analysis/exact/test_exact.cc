// Planted defects: a recorded run is written a second time with one number changed. The check must
// fail and name the place; an unchanged copy must pass.
#include "analysis/exact/exact.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::some_site;
using testing::TempDir;

TEST_CASE("the same run twice passes, however strictly") {
  const TempDir dir;
  const RunFile a = record(dir.file("a.h5"), small_run()),
                b = record(dir.file("b.h5"), small_run());
  const ExactResult result = compare_exactly(b, a, {.strict = true});
  CHECK(result.verdict == ExactVerdict::kPass);
  CHECK(result.groups.empty());
  CHECK(result.lanes.size() == 3);
  CHECK(result.steps == 3);
  CHECK(result.values > 10000);
}

TEST_CASE("a defect in the second loss's scaler is found") {
  const TempDir dir;
  RunOptions options = small_run();
  options.model = "detector", options.data = "shapes:50", options.sizes = {{"width", 4}};
  options.lanes = {"fp32", "apex-o1"};
  options.backward_per_loss = true;
  const RunFile base = record(dir.file("base.h5"), options);
  REQUIRE(base.step(1, 0).scalers.size() == 2);
  const RunFile run = record(dir.file("defect.h5"), options, {.step = [](StepRecord& step) {
                               if (step.step == 1) step.lanes[1].scalers.at(1).growth_tracker += 1;
                             }});
  const ExactResult result = compare_exactly(run, base, {});
  CHECK(result.verdict == ExactVerdict::kRegression);
  REQUIRE(result.groups.size() == 1);
  CHECK(result.groups[0].rule == "loss_scale/growth_tracker");
  CHECK(result.first.step == 1);
  CHECK(compare_exactly(base, base, {}).verdict == ExactVerdict::kPass);
}

TEST_CASE("planted defects are found, with their place") {
  const TempDir dir;
  const RunFile base = record(dir.file("base.h5"), small_run());
  const size_t site = some_site(base);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Planted {
    std::string rule;
    std::function<void(LaneStep&)> defect;
    bool about_site;
  };
  const std::vector<Planted> planted = {
      {"bits_hash", [&](LaneStep& l) { l.sites[site].stats.bits_hash ^= 1; }, true},
      {"counts/to_zero", [&](LaneStep& l) { l.sites[site].stats.to_zero += 1; }, true},
      {"counts/nan", [&](LaneStep& l) { l.sites[site].stats.nan += 1; }, true},
      {"moments/sum_sq", [&](LaneStep& l) { l.sites[site].stats.sum_sq *= 1 + 1e-9; }, true},
      {"moments/sum_sq", [&](LaneStep& l) { l.sites[site].stats.sum_sq = kNan; }, true},
      {"scale", [&](LaneStep& l) { l.sites[site].scale *= 2; }, true},
      {"loss", [&](LaneStep& l) { l.loss += 1e-6; }, false},
      {"loss", [&](LaneStep& l) { l.loss = kNan; }, false},
      {"loss_scale/scale", [&](LaneStep& l) { l.scalers[0].scale /= 2; }, false},
      {"loss_scale/growth_tracker", [&](LaneStep& l) { l.scalers[0].growth_tracker += 1; }, false},
      {"loss_scale/skipped", [&](LaneStep& l) { l.scalers[0].skipped = true; }, false},
  };
  for (const Planted& p : planted) {
    CAPTURE(p.rule);
    const RunFile run = record(dir.file("defect.h5"), small_run(), {.step = [&](StepRecord& step) {
                                 if (step.step == 1) p.defect(step.lanes[1]);
                               }});
    const ExactResult result = compare_exactly(run, base, {});
    CHECK(result.verdict == ExactVerdict::kRegression);
    REQUIRE(result.has_first);
    CHECK(result.first.step == 1);
    CHECK(result.first.lane == "torch-autocast-fp16");
    CHECK(result.first.rule == p.rule);
    if (p.about_site) CHECK(result.first.subject == "site " + run.sites().sites[site].label());
    CHECK(result.first.run != result.first.baseline);
  }
}

TEST_CASE("a sum in another order passes, but not --strict") {
  const TempDir dir;
  const RunFile base = record(dir.file("base.h5"), small_run());
  const size_t site = some_site(base);
  const RunFile run = record(dir.file("defect.h5"), small_run(), {.step = [&](StepRecord& step) {
                               double& sum = step.lanes[1].sites[site].stats.sum_sq;
                               sum = std::nextafter(sum, 2 * sum);
                             }});
  CHECK(compare_exactly(run, base, {}).verdict == ExactVerdict::kPass);
  CHECK(compare_exactly(run, base, {.strict = true}).verdict == ExactVerdict::kRegression);
}

TEST_CASE("relative differences fail closed") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  CHECK(relative_difference(1, 1, 0) == 0);
  CHECK(relative_difference(1, 2, 0) == 0.5);
  CHECK(relative_difference(1, 2, 4) == 0.25);
  CHECK(relative_difference(1e-300, -1e-300, 0) == 2);
  CHECK(relative_difference(kNan, kNan, 0) == 0);
  CHECK(relative_difference(kInf, kInf, 0) == 0);
  CHECK(relative_difference(kInf, -kInf, 0) == kInf);
  CHECK(relative_difference(kNan, 1, 0) == kInf);
  CHECK(relative_difference(1, kNan, 0) == kInf);
  CHECK(relative_difference(1, kInf, kInf) == kInf);
}

TEST_CASE("the default tolerance is 2 gamma_n") {
  CHECK(ExactOptions::default_rel_tol() > 2 * 312 * 0x1p-53);
  CHECK(ExactOptions::default_rel_tol() < 2 * 313 * 0x1p-53);
}

}  // namespace
}  // namespace lockstep

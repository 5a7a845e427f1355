// The element that differs first: by hand, and from replays of recorded runs.
#include "analysis/exact/first_value.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/exact/exact.h"
#include "emulation/format/float_format.h"
#include "src/core/error.h"
#include "tests/analysis/recorded_run.h"
#include "tests/record/run/columns.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::some_site;
using testing::TempDir;

const std::atomic<bool> kNeverStop = false;

TEST_CASE("first value: index, ulps of the site's format, and how many differ") {
  const Format& bf16 = find_format("bf16");  // p = 8: an ulp of 1 is 2^-7
  SiteValues a{{Tensor::from<float>({2, 3}, {1, 2, 3, 1 + 0x1p-6f, 5, 7})}, &bf16};
  const SiteValues b{{Tensor::from<float>({2, 3}, {1, 2, 3, 1, 5, 6})}, &bf16};
  const auto first = compare_values(a, b);
  REQUIRE(first);
  CHECK(first->index == std::vector<int64_t>{1, 0});
  CHECK(first->pass == -1);
  CHECK(first->run == 1 + 0x1p-6);
  CHECK(first->baseline == 1);
  CHECK(first->ulps == 2);
  CHECK(first->differing == 2);
  CHECK(first->count == 6);
  CHECK(!compare_values(b, b));
}

TEST_CASE("first value: zeros of other signs differ, NaN and NaN do not, NaN has no ulps") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Format& fp32 = find_format("fp32");
  const SiteValues a{{Tensor::from<float>({3}, {kNan, 0.0f, 1})}, &fp32};
  const SiteValues b{{Tensor::from<float>({3}, {kNan, -0.0f, kNan})}, &fp32};
  const auto first = compare_values(a, b);
  REQUIRE(first);
  CHECK(first->index == std::vector<int64_t>{1});
  CHECK(first->ulps == 0);
  CHECK(first->differing == 2);
  const SiteValues c{{Tensor::from<float>({3}, {kNan, 0.0f, kNan})}, &fp32};
  CHECK(compare_values(a, c)->ulps == -1);
  const SiteValues d{{Tensor::from<float>({2}, {1, 1})}, &fp32};
  CHECK_THROWS_AS(compare_values(a, d), InputError);
}

TEST_CASE("first value: a replay repeats the bits of a run file, in every lane") {
  const TempDir dir;
  const RunFile run = record(dir.file("a.h5"), small_run());
  for (const LaneInfo& lane : run.lanes()) {
    int found = 0;
    for (const Site& site : run.sites().sites) {
      if (site.id % 7 != 0) continue;
      const std::vector<double> largest =
          testing::column(run.step(run.lane_index(lane.name), /*step=*/1), &TensorStats::abs_max);
      SiteValues values;
      try {
        values = replay_site(run, {1, lane.name, site.id}, kNeverStop);
      } catch (const InputError&) {
        continue;  // this lane has no such value in step 1
      }
      double most = 0;
      for (const Tensor& pass : values.passes) {
        const Tensor doubles = pass.to(Container::kF64);
        for (const double x : doubles.as<double>()) most = std::max(most, std::fabs(x));
      }
      INFO(lane.name << " " << site.label());
      // Before rounding, abs_max is within one rounding of it.
      CHECK(most == doctest::Approx(largest.at(static_cast<size_t>(site.id))).epsilon(0x1p-7));
      CHECK(values.is_recorded);
      ++found;
    }
    INFO(lane.name);
    CHECK(found > 3);
  }
}

TEST_CASE("first value: a comparison names the element, or why it cannot") {
  const TempDir dir;
  const RunFile base = record(dir.file("base.h5"), small_run());
  const size_t site = some_site(base);
  // A file whose hash no replay repeats: as if another program had written it.
  const RunFile other = record(dir.file("other.h5"), small_run(), {.step = [&](StepRecord& step) {
                                 if (step.step == 1) step.lanes[1].sites[site].stats.bits_hash ^= 1;
                               }});
  ExactResult result = compare_exactly(other, base, {.strict = true});
  REQUIRE(result.first_place);
  CHECK(result.first_place->step == 1);
  CHECK(result.first_place->site == static_cast<int32_t>(site));
  find_first_value(result, other, base, kNeverStop);
  CHECK(!result.first_value);
  CHECK(result.no_first_value.find("does not repeat the bits of") != std::string::npos);
  // That program's values: one element is another.
  const auto elsewhere = [&](const RunFile&, const SitePlace& place) {
    std::vector<Tensor> passes = replay_site(base, place, kNeverStop).passes;
    float& third = passes.front().as<float>()[2];
    third = third == 0 ? 1 : 2 * third;
    return passes;
  };
  find_first_value(result, other, base, kNeverStop, elsewhere);
  REQUIRE(result.first_value);
  CHECK(result.first_value->differing == 1);
  CHECK(result.first_value->index.back() == 2);
}

}  // namespace
}  // namespace lockstep

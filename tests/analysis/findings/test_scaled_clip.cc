// Norms that were clipped with and without the loss scale.
#include "analysis/findings/scaled_clip.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("a norm of loss scale times the reference's was clipped too early") {
  const std::vector<double> reference = {2, 3, 2, 2};
  const std::vector<ScalerRecord> scalers = {
      {.scale = 1024, .skipped = true}, {.scale = 512}, {.scale = 512}, {.scale = 512}};
  const auto found = [&](const std::vector<double>& norms, double clip = 1) {
    return find_scaled_clip(1, clip, norms, reference, scalers);
  };
  const auto late = found({kNan, 1536, 1024, 1000});
  REQUIRE(late);
  CHECK(late->kind == FindingKind::kScaledClip);
  CHECK(late->steps == 3);
  CHECK(late->first_step == 1);
  CHECK(late->value == 1000);
  CHECK(late->scale == 512);
  CHECK_FALSE(found({kNan, 3, 2, 2}));              // unscaled before
  CHECK_FALSE(found({kNan, 1536, 1024, 1000}, 0));  // not clipped
  CHECK_FALSE(found({kNan, 1536, 1024, 1000}, 5000));
  CHECK_FALSE(found({kNan, 1536, 2, 2}));  // one of three
}

TEST_CASE("a norm that is infinite although the gradients are finite makes them zero") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> reference = {7e4, 8e4, 9e4};
  const auto found = [&](const std::vector<double>& norms, const std::vector<bool>& finite) {
    return find_overflowed_norm(1, norms, reference, finite, 2, "fp16");
  };
  const auto norm = found({kInf, 6e4, kInf}, {true, true, true});
  REQUIRE(norm);
  CHECK(norm->kind == FindingKind::kSumOverflow);
  CHECK(norm->site == -1);
  CHECK(norm->steps == 2);
  CHECK(norm->last_step == 2);
  CHECK(norm->value == 1.8e5);
  CHECK(norm->limit == 65504);
  CHECK_FALSE(found({kInf, kInf, kInf}, {false, false, false}));  // skipped, or a gradient is
  CHECK_FALSE(found({kNan, 6e4, 6e4}, {true, true, true}));
}

}  // namespace
}  // namespace lockstep

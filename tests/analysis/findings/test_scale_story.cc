// Loss scales that find their place, and such that do not.
#include "analysis/findings/scale_story.h"

#include <doctest/doctest.h>

#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

// 's' skipped with an overflow, '.' taken.
std::vector<ScalerRecord> scalers(const std::string& steps) {
  std::vector<ScalerRecord> out;
  double scale = 65536;
  for (const char step : steps) {
    const bool skip = step == 's';
    out.push_back(
        {.scale = scale, .found_inf = skip, .skipped = skip, .culprit_site = skip ? 3 : -1});
    if (skip) scale /= 2;
  }
  return out;
}

std::vector<Finding> story_of(const std::string& steps, DeathCause cause = DeathCause::kAlive,
                              const std::vector<Finding>& origins = {}) {
  LaneInfo info;
  info.died_of = cause;
  return scale_findings(info, 1, scalers(steps), {0, 0, 5, 1, 0}, testing::chain(), origins);
}

TEST_CASE("probing at the start, and a single skip later, are ordinary") {
  CHECK(story_of("................").empty());
  CHECK(story_of("ssssss..........").empty());
  CHECK(story_of("s.........s.....").empty());
  CHECK(story_of("ss").empty());        // too few steps to tell
  CHECK(story_of("sssssss.").empty());  // the last step is taken
  CHECK(story_of("....s...").empty());  // a batch with an outlier
  CHECK(story_of("....s.s.").size() == 1);
  CHECK(story_of("ssss").size() == 1);
}

TEST_CASE("a scale that keeps falling is a collapse, named with its most frequent origin") {
  const auto found = story_of("s.s.s.s.s.s.s.s.");
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kScaleCollapse);
  CHECK(found[0].site == 2);
  CHECK(found[0].skipped_steps == 8);
  CHECK(found[0].scale == 65536);
  CHECK(found[0].value == 256);
}

TEST_CASE("a scale that grows back before each skip is only probed") {
  // growth_interval 3 in its steady state, after a fall from far above.
  std::vector<ScalerRecord> course;
  double scale = 0x1p24;
  for (int step = 0; step < 32; ++step) {
    const bool skips = step < 8 || step % 4 == 0;
    course.push_back({.scale = scale, .found_inf = skips, .skipped = skips});
    scale *= skips ? 0.5 : step % 4 == 3 ? 2 : 1;
  }
  CHECK(scale_findings({}, 1, course, {0, 0, 5, 1, 0}, testing::chain(), {}).empty());
}

TEST_CASE("a forward pass that overflows is its own finding, not the scaler's") {
  const Finding forward{.kind = FindingKind::kOverflow, .skipped_steps = 16, .site = 0};
  CHECK(story_of("ssssssssssssssss", DeathCause::kAlive, {forward}).empty());
}

TEST_CASE("nor is a division by a number that became zero, though it is in the backward pass") {
  Finding division{.kind = FindingKind::kInvalid, .skipped_steps = 16, .site = 2, .backward = true};
  CHECK(story_of("ssssssssssssssss", DeathCause::kAlive, {division}).empty());
  division.kind = FindingKind::kOverflow;
  CHECK(story_of("ssssssssssssssss", DeathCause::kAlive, {division}).size() == 1);
}

TEST_CASE("a scale of 1 or less: no scaling is left, however early it fell so far") {
  CHECK(story_of(std::string(15, 's') + std::string(40, '.')).empty());  // 65536 / 2^15 = 2
  CHECK(story_of(std::string(16, 's') + std::string(40, '.')).size() == 1);
}

TEST_CASE("a scaler that gives up") {
  const auto found = story_of("ssss", DeathCause::kLossScaler);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kScaleFloor);
}

}  // namespace
}  // namespace lockstep

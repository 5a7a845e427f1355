// Which roundings move the loss most, from effects written by hand.
#include "analysis/findings/drift.h"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

using testing::chain;
using testing::chain_formats;

// The finding of a lane with these effects, by sample and site.
std::optional<Finding> drift_of(const std::vector<std::vector<LossEffect>>& effects) {
  const SiteTable sites = chain();
  const RunOptions options;
  const std::vector<LaneInfo> lanes(2);
  LossEffectTally tally({.sites = sites, .options = options, .lanes = lanes}, 1);
  StepRecord record;
  record.lanes.resize(2);
  for (const std::vector<LossEffect>& sample : effects) {
    std::vector<SiteRecord>& step = record.lanes[1].sites;
    step.resize(sample.size());
    for (size_t i = 0; i < sample.size(); ++i) step[i].effect = sample[i];
    tally.on_step(record);
    record.step += options.measuring.sums_every;
  }
  return find_drift(1, tally, sites, chain_formats());
}

TEST_CASE("the largest root mean square over the samples, as a share of all") {
  const std::vector<std::vector<LossEffect>> effects = {
      {{3, 0}, {-1, 0}, {}, {}, {}}, {{-4, 0}, {1, 0}, {}, {}, {}}, {{5, 0}, {1, 0}, {}, {}, {}}};
  const auto found = drift_of(effects);
  REQUIRE(found);
  CHECK(found->kind == FindingKind::kDrift);
  CHECK(found->site == 0);
  const double size = std::sqrt((9 + 16 + 25) / 3.0);
  CHECK(found->value == doctest::Approx(size));
  CHECK(found->share == doctest::Approx(size / (size + 1)));
  CHECK(found->text == "rounding");
  CHECK(found->consequences == std::vector<int32_t>{1});
}

TEST_CASE("range is kept apart, and leads if it moves the loss more") {
  const std::vector<std::vector<LossEffect>> effects = {{{3, 0}, {0, 4}, {}, {}, {}}};
  const auto found = drift_of(effects);
  REQUIRE(found);
  CHECK(found->site == 1);
  CHECK(found->share == 1);
  CHECK(found->text == "range");
}

TEST_CASE("nothing was weighed") {
  CHECK_FALSE(drift_of({}));
  const std::vector<std::vector<LossEffect>> effects = {std::vector<LossEffect>(5)};
  CHECK_FALSE(drift_of(effects));
}

}  // namespace
}  // namespace lockstep

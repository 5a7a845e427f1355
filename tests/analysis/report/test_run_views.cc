// Views of a recorded run, against the run file's own numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/cost/lane_costs.h"
#include "analysis/report/lane_views.h"
#include "src/record/run/play.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

constexpr int kPureFp16 = 2;
constexpr int kBias = 127;

// The views of a lane whose loss is finite in so many steps.
StepMap map_of(const RunFile& run, int64_t finite_steps) {
  LaneViewTally tally(run, kPureFp16);
  StepRecord record;
  record.lanes.resize(run.lanes().size());
  for (; record.step < run.steps(); ++record.step) {
    for (const int lane : {0, kPureFp16}) {
      run.read_step(lane, record.step, false, record.lanes[static_cast<size_t>(lane)]);
    }
    std::vector<NonfiniteCounts> nonfinite;
    if (record.step < finite_steps) nonfinite = nonfinite_counts(record.lanes[kPureFp16].sites);
    tally.add(record, nonfinite);
  }
  return tally.views({}).map;
}

TEST_CASE("exponents_of drops the empty ends and tells zeros from subnormals") {
  std::vector<uint64_t> bins(kHistogramBins);
  bins[0] = 10;  // 7 zeros, 3 subnormals of FP32
  bins[kBias + 2] = 5;
  bins[kHistogramBins - 1] = 4;
  const SiteExponents one = exponents_of(3, bins, 7);
  CHECK(one.site == 3);
  CHECK(one.zeros == 7);
  CHECK(one.nonfinite == 4);
  CHECK(one.first == -kBias);
  CHECK(one.counts.front() == 3);
  CHECK(one.counts.back() == 5);
  CHECK(one.counts.size() == kBias + 3);
  const SiteExponents tight = exponents_of(3, bins, 10);
  CHECK(tight.first == 2);
  CHECK(tight.counts == std::vector<uint64_t>{5});
  bins.assign(kHistogramBins, 0);
  CHECK(exponents_of(0, bins, 0).counts.empty());
}

TEST_CASE("a site's exponents add up to its values; a scale's losses follow from them") {
  const testing::TempDir folder;
  const RunFile run = testing::record(folder.file("run.h5"), testing::small_run());
  ExponentTally tally(run, 0);
  play_reference(run, tally);
  const std::vector<SiteExponents> reference = tally.exponents();
  CHECK(tally.steps() == run.steps());
  REQUIRE(reference.size() > 10);
  std::vector<uint64_t> count(run.sites().sites.size());
  for (int64_t step = 0; step < run.steps(); ++step) {
    const LaneStep here = run.step(0, step);
    for (size_t i = 0; i < count.size(); ++i) count[i] += here.sites[i].stats.count;
  }
  for (const SiteExponents& one : reference) {
    const uint64_t nonzero = std::accumulate(one.counts.begin(), one.counts.end(), uint64_t{0});
    CAPTURE(run.sites().sites[static_cast<size_t>(one.site)].label());
    CHECK(nonzero + one.zeros + one.nonfinite == count[static_cast<size_t>(one.site)]);
  }
  const std::vector<ScaleLoss> losses = scale_losses(run, reference);
  REQUIRE(!losses.empty());
  for (const ScaleLoss& loss : losses) {
    CHECK(run.sites().sites[static_cast<size_t>(loss.reference.site)].scaled);
    CHECK(loss.format == "fp16");
    REQUIRE(loss.to_zero.size() == static_cast<size_t>(kMaxShownScale - kMinShownScale + 1));
    for (size_t k = 1; k < loss.to_zero.size(); ++k) {  // a larger scale loses less to zero
      CHECK(loss.to_zero[k] <= loss.to_zero[k - 1]);
      CHECK(loss.overflow[k] >= loss.overflow[k - 1]);
    }
    // By hand at 2^0: below 2^-25 zero, from 2^16 on too large.
    const SiteExponents& one = loss.reference;
    uint64_t small = 0, large = 0, all = 0;
    for (size_t i = 0; i < one.counts.size(); ++i) {
      const int exponent = one.first + static_cast<int>(i);
      all += one.counts[i];
      if (exponent < -25) small += one.counts[i];
      if (exponent > 15) large += one.counts[i];
    }
    const auto at_one = static_cast<size_t>(-kMinShownScale);
    CHECK(loss.to_zero[at_one] == static_cast<double>(small) / static_cast<double>(all));
    CHECK(loss.overflow[at_one] == static_cast<double>(large) / static_cast<double>(all));
  }
}

TEST_CASE("error growth is the run file's error of the first step, layer by layer") {
  const testing::TempDir folder;
  const RunFile run = testing::record(folder.file("run.h5"), testing::small_run());
  ErrorGrowthTally tally(view_of(run), kPureFp16);
  play(run, tally);
  const std::optional<ErrorGrowth>& growth = tally.growth();
  REQUIRE(growth);
  CHECK(growth->step == 0);
  REQUIRE(growth->forward.size() >= 2);
  const LaneStep step = run.step(kPureFp16, 0);
  int32_t before = -1;
  for (const LayerError& one : growth->forward) {
    const auto i = static_cast<size_t>(one.site);
    CHECK(one.site > before);
    before = one.site;
    CHECK(run.sites().sites[i].layer == one.layer);
    const TensorStats& stats = step.sites[i].stats;
    const ErrorStats& error = step.sites[i].error;
    if (error.ref_sq > 0) CHECK(one.total == std::sqrt(error.err_sq / error.ref_sq));
    if (stats.sum_sq > 0) CHECK(one.local == std::sqrt(stats.round_err_sq / stats.sum_sq));
  }
}

TEST_CASE("a map that ends early has the columns of the whole run, and no cells after its end") {
  const testing::TempDir folder;
  const RunFile run = testing::record(folder.file("run.h5"), testing::small_run());
  REQUIRE(run.steps() == 3);
  const StepMap whole = map_of(run, 3), early = map_of(run, 1);
  CHECK(early.columns == whole.columns);
  const auto latest = [](const StepMap& map) {
    uint32_t column = 0;
    for (const StepGrid& grid : map.grids) {
      for (const StepCell& cell : grid.cells) column = std::max(column, cell.column);
    }
    return column;
  };
  CHECK(latest(whole) == 2);
  CHECK(latest(early) == 0);
}

TEST_CASE("a chain begins at the finding's site and says what the sites saw in its first step") {
  const testing::TempDir folder;
  const RunFile run = testing::record(folder.file("run.h5"), testing::small_run());
  Finding finding{.kind = FindingKind::kUnderflow, .lane = kPureFp16, .first_step = 1, .site = 4};
  for (int32_t site = 4; site < 4 + static_cast<int32_t>(kMostLinks) + 3; ++site) {
    finding.consequences.push_back(site);
  }
  const FaultChain chain = fault_chain(run, kPureFp16, finding);
  CHECK(chain.step == 1);
  REQUIRE(chain.links.size() == kMostLinks);
  CHECK(chain.left_out == 3);
  const LaneStep step = run.step(kPureFp16, 1);
  for (size_t i = 0; i < chain.links.size(); ++i) {
    const FaultLink& link = chain.links[i];
    CHECK(link.site == 4 + static_cast<int32_t>(i));
    const SiteRecord& expected = step.sites[static_cast<size_t>(link.site)];
    CHECK(std::isnan(link.largest) == !expected.measured);
    if (expected.measured) CHECK(link.largest == expected.stats.abs_max);
    CHECK(link.exponents.has_value());  // the first steps all have a histogram
    if (!link.format.empty()) CHECK(std::isfinite(link.limit));
  }
}

TEST_CASE("costs: the reference takes 1, narrower lanes less memory; no twins") {
  const testing::TempDir folder;
  const RunFile run = testing::record(folder.file("run.h5"), testing::small_run());
  const CostView view = read_costs(run, find_gpu(kDefaultGpu));
  REQUIRE(view.lanes.size() == 3);
  CHECK(view.lanes[0].relative_time == 1);
  for (const LaneCost& cost : view.lanes) {
    REQUIRE(cost.memory);
    CHECK(cost.relative_time > 0);
  }
  CHECK(total_bytes(*view.lanes[kPureFp16].memory) < total_bytes(*view.lanes[0].memory));
  CHECK(view.products > 0);
  CHECK(view.unaligned.size() <= view.products);
  for (const UnalignedProduct& one : view.unaligned) CHECK_FALSE(one.extents.empty());
}

}  // namespace
}  // namespace lockstep

// The sites whose magnitudes decide a recommendation, and that the magnitudes are the reference
// lane's.
#include "analysis/ranges/range_samples.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "src/policy/find_policy.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

// Two sites of a node may share a label, as the operands of one product in the backward pass do.
bool is_unique(const RunFile& run, const std::string& label) {
  return std::ranges::count_if(run.sites().sites,
                               [&](const Site& site) { return site.label() == label; }) == 1;
}
// Requires: a unique label.
const Site& site_of(const RunFile& run, const RangeSample& sample) {
  return *std::ranges::find_if(run.sites().sites,
                               [&](const Site& site) { return site.label() == sample.label; });
}

TEST_CASE("samples are the sites of low-precision ops, without sums and sites that stay in fp32") {
  const TempDir dir;
  const RunFile run = record(dir.file("run.h5"), small_run());
  const Policy base = find_policy("torch-autocast-fp16");
  const std::vector<RangeSample> samples = range_samples(run, base);
  std::set<std::string> ops;
  std::set<Role> roles;
  for (const RangeSample& sample : samples) {
    const Site& site = site_of(run, sample);
    CHECK(site.point != Point::kAccumulator);
    CHECK(sample.layer == site.layer);
    CHECK(sample.role == site.role);
    CHECK(sample.scaled == site.scaled);
    ops.insert(site.op);
    roles.insert(sample.role);
  }
  CHECK(ops.contains("linear"));
  CHECK_FALSE(ops.contains("cross_entropy"));  // FP32 by the preset's list
  for (const Role role : {Role::kInput, Role::kWeight, Role::kActivation, Role::kGradWeight}) {
    CHECK(roles.contains(role));
  }
  for (const Role role : {Role::kLoss, Role::kMasterWeight, Role::kUpdate, Role::kOptimizerState}) {
    CHECK_FALSE(roles.contains(role));
  }
  // If nothing is computed in a low-precision format, there are no samples.
  CHECK(range_samples(run, find_policy("fp32")).size() <= samples.size());
}

TEST_CASE("histograms and zeros are the reference lane's, over all steps") {
  const TempDir dir;
  const RunFile run = record(dir.file("run.h5"), small_run());
  const std::vector<RangeSample> samples = range_samples(run, find_policy("torch-autocast-fp16"));
  REQUIRE(!samples.empty());
  size_t looked_at = 0;
  for (const RangeSample& sample : samples) {
    if (!is_unique(run, sample.label)) continue;
    ++looked_at;
    const auto id = static_cast<size_t>(site_of(run, sample).id);
    uint64_t elements = 0, zeros = 0;
    for (int64_t step = 0; step < run.steps(); ++step) {
      elements += run.step(0, step).sites[id].stats.count;
      zeros += run.step(0, step).sites[id].stats.source_zero;
    }
    CHECK(std::accumulate(sample.histogram.begin(), sample.histogram.end(), uint64_t{0}) ==
          elements);
    CHECK(sample.zeros == zeros);
    CHECK(sample.zeros <= sample.histogram[0]);
  }
  CHECK(2 * looked_at > samples.size());
}

}  // namespace
}  // namespace lockstep

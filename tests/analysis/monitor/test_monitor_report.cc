// What a report of a monitored run reads from its file: courses, alarms, places, updates, and what
// other formats would do.
#include "analysis/monitor/monitor_report.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/monitor/monitored.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {
namespace {

MonitorReport reported(const std::string& path) {
  record_monitored(path, /*steps=*/30, /*every=*/10);
  return read_monitor_report(RunFile::of_any_run(path));
}

}  // namespace

TEST_CASE("a monitored run's courses are those of its steps") {
  const TemporaryFolder folder;
  const MonitorReport report = reported(folder.file("live.h5"));
  CHECK(report.path == folder.file("live.h5"));
  CHECK(report.data == "live: Net, by hand");
  CHECK(report.damage == "");
  CHECK(report.every == 10);
  CHECK(report.measured == std::vector<int64_t>{0, 10, 20});
  REQUIRE(report.steps() == 30);
  CHECK(report.loss[29] == 2 - 29.0 / 64);
  CHECK(report.scale == std::vector<double>(30, kMonitoredScale));
  CHECK(report.gradient_norm[29] == 0.5 + 29.0 / 128);
  CHECK(report.lr[3] == 0.125);
  CHECK(report.seconds[29] == 0.25);
  CHECK(report.skips == std::vector<int64_t>{7});
  CHECK(report.update_norm == std::vector<double>{1, 1, 1});
  CHECK(report.weight_norm == std::vector<double>{4, 4, 4});
}

TEST_CASE("a monitored run's alarms are read again from its file") {
  const TemporaryFolder folder;
  const MonitorReport report = reported(folder.file("live.h5"));
  REQUIRE(report.alarms.size() == 1);
  CHECK(report.alarms[0].rule == "attention-logits");
  CHECK(report.alarms[0].step == 20);
  CHECK(report.alarms[0].site == kLogits);
  CHECK(report.alarms[0].rank == kLogits + 1);
  CHECK(report.alarms[0].micro_batch == kLogits + 2);
  CHECK(report.alarms[0].sentence == "a logit of attention is 128, above 100");
}

TEST_CASE("a monitored run's places: counts, largest values, headroom") {
  const TemporaryFolder folder;
  const MonitorReport report = reported(folder.file("live.h5"));
  REQUIRE(report.places.size() == kMonitoredSites);
  for (int32_t s = 0; s < kMonitoredSites; ++s) {
    const LiveSiteReport& place = report.places[static_cast<size_t>(s)];
    CHECK(place.site == s);
    CHECK(place.count == 3 * kMonitoredCount);
    CHECK(place.zeros == 3 * kMonitoredZeros);
    CHECK(place.nonfinite == 0);
  }
  const LiveSiteReport& logits = report.places[kLogits];
  CHECK(logits.largest == 128);
  CHECK(logits.last_largest == 128);
  CHECK(logits.least_headroom == std::log2(65504.0 / 128));
  CHECK(logits.last_headroom == std::log2(65504.0 / 128));
  for (const size_t octave : {5, 6, 7}) CHECK(logits.sample.histogram[127 + octave] == 999);
  // 2^3 with the scale 2^10: the headroom is of the values as they are.
  const LiveSiteReport& gradient = report.places[kFcGradWeight];
  CHECK(gradient.largest == 0x1p-7);
  CHECK(gradient.least_headroom == std::log2(65504.0 / 8));
  CHECK(gradient.sample.histogram[127 - 7] == 3 * 999);
}

TEST_CASE("a monitored run's updates, first and last") {
  const TemporaryFolder folder;
  const MonitorReport report = reported(folder.file("live.h5"));
  REQUIRE(report.updates.size() == 1);
  CHECK(report.updates[0].site == kFcWeight);
  CHECK(report.updates[0].relative == 0.25);
  CHECK(report.updates[0].first_stagnant == 0.1);
  CHECK(report.updates[0].last_stagnant == 0.3);
  CHECK(report.updates[0].last_stagnant_bf16 == 0.6);
}

TEST_CASE("a monitored run: what FP8 and FP16 would do") {
  const TemporaryFolder folder;
  const MonitorReport report = reported(folder.file("live.h5"));
  // Weights, activations and their gradients, not the weights' gradients.
  REQUIRE(report.fp8.size() == 4);
  for (const Fp8Site& one : report.fp8) {
    CAPTURE(one.site);
    CHECK(one.site != kFcGradWeight);
    const bool is_gradient_site = one.site == kFcGradOutput;
    CHECK(one.format == (is_gradient_site ? "fp8_e5m2" : "fp8_e4m3"));
    // Half of the values are 20 octaves down: fp8_e4m3 keeps 18, fp8_e5m2 32.
    CHECK(one.zeroed == (is_gradient_site ? 0 : 0.5));
    // Half of the values grow by an octave from one measured step to the next.
    const bool grows = one.site == kFcOutput || one.site == kLogits;
    CHECK(one.saturated == (grows ? 0.5 : 0));
  }
  REQUIRE(report.ranges.size() == 3);
  CHECK(report.ranges[0].format->name == "fp16");
  REQUIRE(report.ranges[0].layers.size() == 2);
  CHECK(report.ranges[0].layers[0].layer == "fc");
  CHECK(report.ranges[0].layers[0].has_gradients);
  // Activations reach 2^3, fp16 2^15.
  CHECK(report.ranges[0].layers[0].unscaled_margin == 12);
  CHECK(report.ranges[0].layers[1].layer == "attention");
}

}  // namespace lockstep::testing

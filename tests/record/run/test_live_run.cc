// A monitor's run file: one lane, whose rows of sites that were not measured take no space.
#include <doctest/doctest.h>
#include <hdf5.h>

#include <filesystem>
#include <string>
#include <vector>

#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/lane_info.h"
#include "src/record/run/run_reader.h"
#include "tests/monitor/monitored.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kLiveSteps = 30, kLiveEvery = 10;
constexpr const char* kLargest = "lanes/live/moments/abs_max";

// Flips the lowest bit of one byte of a site's number, as it is in the file.
void flip_byte(const std::string& path, const std::string& dataset, hsize_t step, hsize_t site) {
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
  const hdf5::Handle numbers(H5Dopen2(file.id(), dataset.c_str(), H5P_DEFAULT), "open");
  const hdf5::Handle rows(H5Dget_space(numbers.id()), "read");
  const hsize_t at[2] = {step, site};
  hdf5::check(H5Sselect_elements(rows.id(), H5S_SELECT_SET, 1, at), "select");
  const hdf5::Handle one(H5Screate(H5S_SCALAR), "make");
  uint64_t bits = 0;
  const hid_t type = H5T_NATIVE_DOUBLE;
  hdf5::check(H5Dread(numbers.id(), type, one.id(), rows.id(), H5P_DEFAULT, &bits), "read");
  bits ^= 1;
  hdf5::check(H5Dwrite(numbers.id(), type, one.id(), rows.id(), H5P_DEFAULT, &bits), "write");
}

// Bytes that the dataset takes in the file, without what finds them.
uint64_t stored_bytes(const std::string& path, const std::string& dataset) {
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open");
  const hdf5::Handle numbers(H5Dopen2(file.id(), dataset.c_str(), H5P_DEFAULT), "open");
  return H5Dget_storage_size(numbers.id());
}

void check_same_site(const SiteRecord& read, const SiteRecord& written) {
  CHECK(read.measured);
  CHECK(read.scale == written.scale);
  CHECK(read.stats.count == written.stats.count);
  CHECK(read.stats.source_zero == written.stats.source_zero);
  CHECK(read.stats.nan == written.stats.nan);
  CHECK(read.stats.abs_max == written.stats.abs_max);
  CHECK(read.stats.sum_sq == written.stats.sum_sq);
  CHECK(read.stats.exponent_histogram == written.stats.exponent_histogram);
  CHECK(read.update.measured == written.update.measured);
  CHECK(read.update.stats.count == written.update.stats.count);
  CHECK(read.update.stats.stagnant == written.update.stats.stagnant);
  CHECK(read.live.stagnant_bf16 == written.live.stagnant_bf16);
  CHECK(read.live.largest_rank == written.live.largest_rank);
  CHECK(read.live.largest_micro_batch == written.live.largest_micro_batch);
  CHECK(read.live.nonfinite_rank == written.live.nonfinite_rank);
  CHECK(read.live.nonfinite_micro_batch == written.live.nonfinite_micro_batch);
  if (!written.update.measured) return;
  CHECK(read.update.stats.update_sq == written.update.stats.update_sq);
  CHECK(read.update.stats.weight_sq == written.update.stats.weight_sq);
}

}  // namespace

TEST_CASE("a monitored run reads back as it was recorded") {
  const TemporaryFolder folder;
  const std::string path = folder.file("live.h5");
  record_monitored(path, kLiveSteps, kLiveEvery);
  const RunFile run = RunFile::of_any_run(path);
  CHECK(run.is_live());
  CHECK(run.steps() == kLiveSteps);
  CHECK(run.data() == "live: Net, by hand");
  CHECK(run.options().model == "Net");
  CHECK(run.options().steps == kUnknownSteps);
  CHECK(run.options().measuring.statistics_every == kLiveEvery);
  REQUIRE(run.lanes().size() == 1);
  CHECK(run.lanes()[0].name == kLiveLane);
  CHECK(run.lanes()[0].engine == "pytorch");
  CHECK(run.lanes()[0].target == "cpu");
  CHECK_FALSE(run.lanes()[0].is_reference);
  CHECK(run.lanes()[0].site_formats.at(kFcWeight) == "fp32");
  CHECK(run.lanes()[0].site_formats.at(kFcOutput) == "fp16");
  REQUIRE(run.sites().sites.size() == kMonitoredSites);
  CHECK(run.sites().sites[kFcGradWeight].node == "live:fc.weight:grad_weight");
  CHECK(run.sites().sites[kFcGradWeight].scaled);
  CHECK(run.measured_steps() == 3);
  CHECK(run.histogram_steps(0) == std::vector<int64_t>{0, 10, 20});
  CHECK(run.last_measured(19) == 10);
  const std::vector<LaneStep> course = run.course(0);
  REQUIRE(course.size() == kLiveSteps);
  for (int64_t step = 0; step < kLiveSteps; ++step) {
    CAPTURE(step);
    const bool is_measured = step % kLiveEvery == 0;
    const LaneStep written = monitored_step(step, is_measured).lanes[0];
    CHECK(run.is_measured(step) == is_measured);
    const LaneStep read = run.step(0, step);
    for (const LaneStep* one : {&read, &course[static_cast<size_t>(step)]}) {
      CHECK(one->loss == written.loss);
      CHECK(one->gradient_norm == written.gradient_norm);
      CHECK(one->seconds == written.seconds);
      CHECK(one->lr == written.lr);
      REQUIRE(one->scalers.size() == 1);
      CHECK(one->scalers[0].scale == kMonitoredScale);
      CHECK(one->scalers[0].found_inf == (step == 7));
      CHECK(one->scalers[0].skipped == (step == 7));
    }
    REQUIRE(read.sites.size() == kMonitoredSites);
    for (size_t s = 0; s < read.sites.size(); ++s) {
      CAPTURE(s);
      if (is_measured) {
        check_same_site(read.sites[s], written.sites[s]);
      } else {
        CHECK_FALSE(read.sites[s].measured);
        CHECK_FALSE(read.sites[s].update.measured);
        CHECK(read.sites[s].stats.count == 0);
        CHECK(read.sites[s].live.largest_rank == -1);
      }
    }
  }
}

TEST_CASE("rows of sites that were not measured take no space in a monitored run") {
  constexpr int kBlocks = 40;
  const TemporaryFolder folder;
  const std::string some = folder.file("some.h5"), all = folder.file("all.h5");
  record_monitored(some, kLiveSteps, kLiveEvery, kBlocks);
  record_monitored(all, kLiveSteps, 1, kBlocks);
  constexpr uint64_t kRowBytes = kBlocks * kMonitoredSites * sizeof(double);
  CHECK(stored_bytes(some, kLargest) == 3 * kRowBytes);
  CHECK(stored_bytes(all, kLargest) == kLiveSteps * kRowBytes);
  CHECK(stored_bytes(some, "lanes/live/counts/nan") == 0);  // of no value
  // Of histograms, compressed, the space is not known; without: 30 rows of 200 sites.
  constexpr uint64_t kBinBytes = kHistogramBins * sizeof(uint32_t);
  const uint64_t bins = stored_bytes(all, "lanes/live/exponent_histogram");
  CHECK(bins > 0);
  CHECK(bins < kLiveSteps * kBlocks * kMonitoredSites * kBinBytes / 20);
  CHECK(std::filesystem::file_size(some) < std::filesystem::file_size(all) / 2);
  const RunFile run = RunFile::of_any_run(some);
  CHECK(run.step(0, 20).sites.back().stats.abs_max == 128);
  CHECK_FALSE(run.step(0, 29).sites.back().measured);
}

TEST_CASE("a monitored run is refused where lanes are compared, and says what recorded it") {
  const TemporaryFolder folder;
  const std::string path = folder.file("live.h5");
  record_monitored(path, 2, 1);
  const std::string why = error_of([&] { const RunFile run(path); });
  CHECK(has(why, path));
  CHECK(has(why, "a monitor recorded the run itself"));
  CHECK(has(why, "lockstep report"));
}

TEST_CASE("a monitored run is proven; a flipped byte of a row is found, also of an absent one") {
  const TemporaryFolder folder;
  const std::string path = folder.file("live.h5");
  record_monitored(path, kLiveSteps, kLiveEvery);
  const RunFile::Proof whole = RunFile::of_any_run(path).prove();
  CHECK(whole.problems.empty());
  CHECK(whole.rows >= 2 * kLiveSteps + 3);  // steps, their times, histograms
  for (const int64_t step : {10, 25}) {
    CAPTURE(step);
    const std::string changed = folder.file("changed.h5");
    std::filesystem::copy_file(path, changed, std::filesystem::copy_options::overwrite_existing);
    flip_byte(changed, kLargest, static_cast<hsize_t>(step), kFcOutput);
    const RunFile run = RunFile::of_any_run(changed);
    const std::vector<std::string> problems = run.prove().problems;
    REQUIRE(problems.size() == 1);
    CHECK(has(problems[0], std::string(kLargest) + ": step " + std::to_string(step) + ":"));
    CHECK(has(error_of([&] { run.step(0, step); }), "the checksum does not fit"));
    CHECK(error_of([&] { run.step(0, step - 1); }) == "");
  }
}

}  // namespace lockstep::testing

// The result of a check, as plain data: the verdict, and each alarm with its place, its number, the
// limit and the source of the limit.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/check/change_alarms.h"
#include "analysis/check/ensemble.h"
#include "analysis/check/metrics.h"
#include "analysis/check/rules.h"

namespace lockstep {

enum class CheckVerdict : uint8_t {
  kIdentical,     // every bit
  kWithinNoise,   // nothing beyond what equally good runs do
  kImproved,      // nothing worse, and something better than any of them
  kRegression,    // something worse
  kIncomplete,    // nothing worse, but a part of the baseline is missing
  kInconclusive,  // nothing, or not enough, to compare with
  kError,         // a file could not be read, or the run failed: nothing was judged
};
std::string_view to_string(CheckVerdict verdict);
int exit_code_of(CheckVerdict verdict);  // 0, 1, 2 or 3

// One number beyond its limit, for the worse or for the better.
struct Alarm {
  std::string lane = {}, layer = {}, op = {}, role = {}, point = {}, source_line = {};
  std::string parameter = {};
  MetricId metric = MetricId::kNonfinite;
  int32_t site = -1;  // in the run
  int64_t step = -1;  // the first step beyond the limit; -1: over the run
  double value = 0, expected = 0, limit = 0;
  double times = 0;             // |value - expected| / |limit - expected|
  std::string limit_from = {};  // "20 runs from weights moved by one ulp"
  // Instead of a metric: a kind of finding that the baseline lacks, kSetting, kOtherInputs, or
  // kNoGradient.
  std::string finding = {};
  // Where the values come from if that place has no counterpart in the baseline: "stage1 max_pool2d
  // (net.py:12)".
  std::string origin = {}, origin_line = {};
  std::string gone = {};  // an op of the baseline that is missing just before it: "blocks.0 add"
  // "conv1 conv2d output (model.py:12), step 0: root mean square ...". No full stop.
  std::string sentence = {};

  // To mark in the source: where the values come from, else the place itself.
  const std::string& marked_line() const { return origin_line.empty() ? source_line : origin_line; }
};

// What a rules file has switched off.
struct Ignored {
  std::string rule, reason, expires;
  size_t alarms = 0;
  bool has_expired = false;  // then it is not applied
};

// How many numbers of a metric were judged in a lane.
struct JudgedFamily {
  std::string lane;
  MetricId metric;
  size_t numbers = 0;
};

struct CheckOptions {
  double alpha = 0.01;  // of a red verdict on a run that is as good as the baseline's
  CheckRules rules = {};
  std::chrono::sys_days today = {};  // rules that expired before it are not applied
};

struct CheckResult {
  CheckVerdict verdict = CheckVerdict::kInconclusive;
  Draw draw = Draw::kSame;
  std::string run, baseline;         // paths
  std::string baseline_note;         // of a folder: why this one, if it does not fit exactly
  std::vector<Alarm> alarms;         // the origin first
  std::vector<Alarm> improvements;   // the largest first
  std::vector<std::string> changes;  // what is not the same in model, loop, lanes and data
  std::vector<std::string> missing;  // of the baseline: lanes, metrics, steps, parameters
  std::vector<std::string> remarks;
  std::vector<std::string> why_inconclusive;
  std::vector<std::string> problems;  // of an error: at least one
  std::vector<Ignored> ignored;
  std::vector<JudgedFamily> families;   // by lane, then in the order of the metrics
  size_t sites = 0, sites_matched = 0;  // of the baseline; with a counterpart in the run
  size_t judged = 0;                    // numbers, of all families
  size_t shared_nonfinite = 0;          // sites with NaN or infinity in the baseline, too
  int64_t steps = 0, runs = 0;          // judged; in the ensemble
  std::string first_difference;         // of two run files: the first place with other bits, or ""
  int64_t first_other_bits = -1;        // the first step with other bits in some lane; -1: none
  double alpha = 0;
};

}  // namespace lockstep

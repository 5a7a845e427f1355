// A check's result for a job of GitHub Actions: annotations, which are lines on standard output.
// Source: GitHub's "Workflow commands for GitHub Actions"; a step shows ten annotations of a kind.
#pragma once

#include <string>
#include <string_view>

#include "analysis/check/check_result.h"

namespace lockstep {

inline constexpr size_t kMostAnnotations = 10;
// The most bytes that the steps of a job append to $GITHUB_STEP_SUMMARY; GitHub drops a longer
// summary whole.
inline constexpr size_t kMostSummaryBytes = size_t{1} << 20;

// One for each cause (alarm_groups.h), the origin first; the last one says how many are not shown.
std::string github_annotations(const CheckResult& result);
// As much of `markdown` as fits into a summary that has `used` bytes, cut at a line.
std::string summary_that_fits(std::string_view markdown, size_t used);

}  // namespace lockstep

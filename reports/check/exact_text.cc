// Layout of a check's result.
#include "reports/check/exact_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/exact/exact_rules.h"
#include "reports/check/alarm_tables.h"
#include "reports/writers/number_text.h"
#include "reports/writers/text_writer.h"
#include "src/core/tensor.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kShownGroups = 20;

std::string verdict_text(const ExactResult& result) {
  switch (result.verdict) {
    case ExactVerdict::kPass:
      return "PASS";
    case ExactVerdict::kRegression:
      return "REGRESSION";
    case ExactVerdict::kIncomplete:
      return "INCOMPLETE";
    case ExactVerdict::kNothingComparable:
      return "INCONCLUSIVE";
  }
  return "";
}

std::string relative_text(double relative) {
  return std::isinf(relative) ? "not finite or missing" : fmt::format("{:.3g}", relative);
}

std::string where(const Difference& d) {
  std::string text = d.step >= 0 ? fmt::format("step {}, ", d.step) : "whole run, ";
  text += "lane " + d.lane;
  if (!d.subject.empty()) text += ", " + d.subject;
  return text;
}

TableBlock worst_table(const ExactResult& result) {
  TableBlock table;
  table.columns = {{"lane", Align::kLeft}, {"what", Align::kLeft}, {"differ"},  {"of"},
                   {"first at"},           {"worst at"},           {"relative"}};
  const size_t shown = std::min(result.groups.size(), kShownGroups);
  for (size_t i = 0; i < shown; ++i) {
    const DifferenceGroup& g = result.groups[i];
    const auto step = [](const Difference& d) {
      return d.step >= 0 ? fmt::format("{}", d.step) : std::string("-");
    };
    const bool is_hash = compares_hashes(g.rule);
    table.rows.push_back({g.lane, g.rule, with_thousands(g.count), with_thousands(g.compared),
                          step(g.first), is_hash ? "-" : step(g.worst),
                          is_hash ? "-" : relative_text(g.worst.relative)});
  }
  if (result.groups.size() > shown) {
    table.notes.push_back(fmt::format("... and {} more rows", result.groups.size() - shown));
  }
  table.notes.push_back(
      "differ, of: numbers. first at, worst at: step. relative: |run - baseline| / the larger "
      "one.");
  return table;
}

}  // namespace

std::string first_value_text(const ExactResult& result, const std::string& here,
                             const std::string& there) {
  if (!result.first_value) {
    if (result.no_first_value.empty()) return "";
    return fmt::format("Which element differs is not known: {}", result.no_first_value);
  }
  const FirstValue& v = *result.first_value;
  const std::string ulps =
      v.ulps < 0 ? ""
                 : fmt::format(", {:.6g} ulp{} of {}", v.ulps, v.ulps == 1 ? "" : "s", v.format);
  return fmt::format("First element{}: {} is {:.9g} {} and {:.9g} {}{}. {} of {} elements differ",
                     v.pass < 0 ? "" : fmt::format(" (pass {})", v.pass), to_string(v.index), v.run,
                     here, v.baseline, there, ulps,
                     with_thousands(static_cast<uint64_t>(v.differing)),
                     with_thousands(static_cast<uint64_t>(v.count)));
}

std::string exact_text(const ExactResult& result, const std::string& run_path,
                       const std::string& baseline_path, const ExactOptions& options) {
  Blocks blocks;
  uint64_t different = 0;
  for (const DifferenceGroup& g : result.groups) different += g.count;
  blocks.push_back(paragraph(fmt::format(
      "{} of {} numbers differ, in {} over {}. Hashes, counts, histograms and scaler "
      "states are compared exactly, sums and losses {}.",
      with_thousands(different), with_thousands(result.values),
      counted(result.lanes.size(), "lane"), counted(static_cast<uint64_t>(result.steps), "step"),
      options.strict ? "exactly too (--strict)"
                     : fmt::format("to a relative {:.3g}", options.rel_tol))));
  std::vector<std::string> broke;
  for (const NewFinding& found : result.new_findings) {
    broke.push_back(fmt::format("{}: {}.", found.lane, found.sentence));
  }
  add_list(blocks, "New findings, which the baseline does not have:", broke);
  add_list(blocks, "Not comparable:", result.not_comparable);
  add_list(blocks, "Missing:", result.missing);
  if (result.has_first) {
    const Difference& d = result.first;
    blocks.push_back(paragraph("First difference:"));
    blocks.push_back(verbatim(
        fmt::format("{}\n{}: {} here, {} in the baseline", where(d), d.rule, d.run, d.baseline)));
    if (const std::string element = first_value_text(result); !element.empty()) {
      blocks.push_back(paragraph(element + "."));
    }
    blocks.push_back(worst_table(result));
  }
  if (result.nonfinite_on_both > 0) {
    blocks.push_back(
        paragraph(fmt::format("{} numbers are NaN or infinite, the same on both sides.",
                              with_thousands(result.nonfinite_on_both))));
  }
  add_list(blocks, "Remarks:", result.remarks);
  return heading_text(
             fmt::format("{}: {} against {}", verdict_text(result), run_path, baseline_path)) +
         to_text(blocks);
}

}  // namespace lockstep

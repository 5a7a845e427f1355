// What this report does not show, and how to get it: a line each.
#include <fmt/format.h>

#include <algorithm>

#include "reports/run/section.h"

namespace lockstep {
namespace {

Blocks write_missing(const AdvisedReport& advised) {
  const Report& report = advised.report;
  Blocks out;
  const auto add = [&](std::string text) { out.push_back(paragraph("- " + std::move(text))); };
  const auto any = [&](auto holds) { return std::ranges::any_of(report.lanes, holds); };
  if (advised.answer.empty()) {
    add(fmt::format(
        "A recommendation: `lockstep recommend {} --report advice.html` runs candidates.",
        report.options.model));
  }
  if (report.twins.empty()) add("The noise of one ulp: replay with --twins 1 or more.");
  if (!report.has_several_seeds()) add("The scatter of seeds: replay with --seeds N.");
  if (!any([](const LaneReport& lane) { return lane.has_scaler; })) {
    add("A loss scale: no lane has one.");
  }
  if (report.ranges.empty()) {
    add(report.reference().nonfinite_loss_at >= 0
            ? "The loss scales that fit: the reference's own loss is not finite."
            : "The loss scales that fit: no lane has gradients in fp16 or bf16.");
  }
  if (!any([](const LaneReport& lane) { return lane.views.growth.has_value(); })) {
    add("How errors grow: no lane still had the reference's weights in a measured step.");
  }
  if (report.captured < 0 && !report.options.capture_hash.empty()) {
    add("PyTorch's own run: the capture was replayed without the captured lane.");
  }
  return out;
}

}  // namespace

Section missing_section() {
  return {.name = "missing",
          .title = "Not in this report",
          .in_summary = false,
          .write = write_missing,
          .only_html = true};
}

}  // namespace lockstep

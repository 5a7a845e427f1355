// The exponents of the values at every site, against the formats' windows; what a loss scale would
// lose of the gradients.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "reports/run/section.h"
#include "reports/words/format_window.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"
#include "src/graph/site_labels.h"

namespace lockstep {
namespace {

constexpr std::string_view kAlwaysShown[] = {"fp16", "bf16"};
constexpr size_t kMostSites = 300;  // of the table; the chart has all sites

bool is_shown(const LaneReport& lane) {
  return !lane.is_twin() && !lane.is_captured() && !lane.views.exponents.empty();
}

std::string format_at(const LaneReport& lane, int32_t site) {
  const std::vector<std::string>& formats = lane.info.site_formats;
  return formats.empty() ? "" : formats[static_cast<size_t>(site)];
}

// The scale within a lane's gradients; a range if it changed.
std::string scale_of(const LaneReport& lane, const Site& site) {
  // With several scalers, the file does not say which one a site's gradients belong to.
  if (!site.scaled || !lane.has_scaler || lane.scalers.size() != 1) return "";
  const std::vector<double>& scales = lane.scalers[0].scales;
  if (scales.empty()) return "";
  const auto [low, high] = std::ranges::minmax(scales);
  return low == high ? scale_text(low) : scale_text(low) + " to " + scale_text(high);
}

TableBlock exponent_table(const Report& report, const std::vector<std::string>& labels) {
  TableBlock table;
  table.columns = {{"lane", Align::kLeft},
                   {"site", Align::kLeft},
                   {"format", Align::kLeft},
                   {"smallest"},
                   {"largest"},
                   {"zeros"},
                   {"not finite"}};
  size_t left_out = 0;
  for (const LaneReport& lane : report.lanes) {
    if (!is_shown(lane)) continue;
    for (const SiteExponents& one : lane.views.exponents) {
      if (table.rows.size() == kMostSites) {
        ++left_out;
        continue;
      }
      const int last = one.first + static_cast<int>(one.counts.size()) - 1;
      const bool none = one.counts.empty();
      table.rows.push_back({lane.info.name, labels[static_cast<size_t>(one.site)],
                            format_at(lane, one.site),
                            none ? Cell("-") : scale_cell(std::ldexp(1.0, one.first)),
                            none ? Cell("-") : scale_cell(std::ldexp(1.0, last)),
                            count_cell(one.zeros), count_cell(one.nonfinite)});
    }
  }
  if (left_out > 0) {
    table.notes.push_back(fmt::format(
        "... and {} more; `lockstep_capture.read_run` has all of them.", with_thousands(left_out)));
  }
  return table;
}

// The one to show first: where the gravest finding began, else a gradient. True: a finding.
bool lead_with_worst(const Report& report, std::vector<HistogramView>& views) {
  bool finding_leads = false;
  auto first = std::ranges::find_if(
      views, [&](const HistogramView& view) { return report.site(view.site).scaled; });
  for (const LaneReport& lane : report.lanes) {
    const auto found = std::ranges::find_if(lane.findings, [](auto& f) { return f.site >= 0; });
    if (found == lane.findings.end()) continue;
    const auto at = std::ranges::find_if(views, [&](const HistogramView& view) {
      return view.lane == lane.info.name && view.site == found->site;
    });
    if (at == views.end()) continue;
    const bool is_first = !finding_leads;
    finding_leads = true;
    const bool broke = lane.judgement.verdict == Verdict::kBroke;
    if (is_first || broke) first = at;
    if (broke) break;
  }
  if (first != views.end()) std::rotate(views.begin(), first, first + 1);
  return finding_leads;
}

Blocks write_exponents(const Report& report) {
  Histograms out;
  const std::vector<std::string> labels = unique_labels(report.sites);
  std::set<std::string> formats(std::begin(kAlwaysShown), std::end(kAlwaysShown));
  for (const LaneReport& lane : report.lanes) {
    if (!is_shown(lane)) continue;
    for (const SiteExponents& one : lane.views.exponents) {
      const Site& site = report.site(one.site);
      const std::string format = format_at(lane, one.site);
      if (!format.empty()) formats.insert(format);
      out.views.push_back({.site = one.site,
                           .lane = lane.info.name,
                           .layer = site.layer.empty() ? "-" : site.layer,
                           .role = std::string(to_string(site.role)),
                           .label = labels[static_cast<size_t>(one.site)],
                           .source_line = site.source_line,
                           .format = format,
                           .seen = {one.first, one.counts},
                           .zeros = one.zeros,
                           .nonfinite = one.nonfinite,
                           .scale = scale_of(lane, site)});
    }
  }
  if (out.views.empty()) return {};
  out.finding_leads = lead_with_worst(report, out.views);
  for (const std::string& name : formats) out.windows.push_back(window_of(find_format(name)));
  out.reference = report.reference().info.name;
  out.first_scale = kMinShownScale;
  for (const ScaleLoss& loss : report.scale_losses) {
    out.gradients.push_back({.site = loss.reference.site,
                             .format = loss.format,
                             .reference = {loss.reference.first, loss.reference.counts},
                             .to_zero = loss.to_zero,
                             .overflow = loss.overflow});
  }
  const int64_t covered = report.reference().views.exponent_steps;
  const std::string steps =
      covered == report.measured_steps() && report.unmeasured_steps > 0 ? "the measured steps"
      : covered == report.steps                                         ? "all steps"
                                : fmt::format("{} of {} steps", covered, report.steps);
  return {paragraph(fmt::format(
              "Magnitudes before rounding, by their power of two, over {}. For a gradient, the "
              "slider shifts the reference's values by a loss scale.",
              steps)),
          chart("Exponents of one site's values", std::move(out), exponent_table(report, labels))};
}

}  // namespace

Section exponents_section() {
  return {.name = "histogram",
          .title = "Exponents against the formats",
          .in_summary = false,
          .write = write_exponents,
          .only_html = true};
}

}  // namespace lockstep

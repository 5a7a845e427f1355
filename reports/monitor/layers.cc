// Every place: how large its values are; their exponents as a picture.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/monitor/monitor_page.h"
#include "reports/words/format_window.h"
#include "reports/writers/cells.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kWindows[] = {"fp16", "bf16", "fp8_e4m3", "fp8_e5m2"};
constexpr int kFp32Bias = 127;
constexpr size_t kMostPlaces = 300;

ExponentCounts counts_of(const RangeSample& sample) {
  int first = 1, last = kHistogramBins - 2;
  while (first <= last && sample.histogram[static_cast<size_t>(first)] == 0) ++first;
  while (last >= first && sample.histogram[static_cast<size_t>(last)] == 0) --last;
  return {first - kFp32Bias,
          {sample.histogram.begin() + first, sample.histogram.begin() + last + 1}};
}

Blocks write_layers(const MonitorReport& report) {
  Histograms picture;
  TableBlock out;
  out.columns = {
      {"place", Align::kLeft}, {"format", Align::kLeft, true}, {"smallest"}, {"largest"}, {"zeros"},
      {"not finite"}};
  for (const LiveSiteReport& place : report.places) {
    const Site& site = report.site(place.site);
    const std::string& format = report.formats[static_cast<size_t>(place.site)];
    const ExponentCounts seen = counts_of(place.sample);
    picture.views.push_back({.site = place.site,
                             .lane = std::string(kLiveLane),
                             .layer = site.layer.empty() ? "-" : site.layer,
                             .role = std::string(to_string(site.role)),
                             .label = place_name(site),
                             .source_line = "",
                             .format = format,
                             .seen = seen,
                             .zeros = place.zeros,
                             .nonfinite = place.nonfinite,
                             .scale = ""});
    if (out.rows.size() == kMostPlaces) continue;
    out.rows.push_back({place_name(site), format,
                        seen.counts.empty() ? Cell("-") : scale_cell(std::ldexp(1.0, seen.first)),
                        number_cell(place.largest), count_cell(place.zeros),
                        count_cell(place.nonfinite)});
  }
  if (report.places.size() > kMostPlaces) {
    out.notes.push_back(fmt::format("... and {} more; `lockstep_capture.read_run` has all of them.",
                                    with_thousands(report.places.size() - kMostPlaces)));
  }
  out.notes.push_back(
      "Over the measured steps, without the loss scale. Smallest: its power of two.");
  for (const std::string_view name : kWindows) {
    picture.windows.push_back(window_of(find_format(name)));
  }
  return {chart("Exponents of one place's values", std::move(picture), std::move(out))};
}

}  // namespace

MonitorSection layers_monitor_section() {
  return {"layers", "Layers", write_layers};
}

}  // namespace lockstep

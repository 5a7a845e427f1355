// The places nearest to the largest number of the format that holds them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/monitor/monitor_page.h"
#include "reports/writers/cells.h"

namespace lockstep {
namespace {

constexpr size_t kNearestPlaces = 12;
constexpr double kFar = 32;  // octaves: no run comes near

Blocks write_headroom(const MonitorReport& report) {
  std::vector<const LiveSiteReport*> nearest;
  for (const LiveSiteReport& place : report.places) {
    if (place.least_headroom < kFar) nearest.push_back(&place);
  }
  std::ranges::stable_sort(nearest, {}, &LiveSiteReport::least_headroom);
  if (nearest.size() > kNearestPlaces) nearest.resize(kNearestPlaces);
  if (nearest.empty()) return {};
  TableBlock out;
  out.columns = {{"place", Align::kLeft},
                 {"format", Align::kLeft},
                 {"octaves left"},
                 {"in the last step"},
                 {"largest value"}};
  for (const LiveSiteReport* place : nearest) {
    out.rows.push_back({place_name(report.site(place->site)),
                        report.formats[static_cast<size_t>(place->site)],
                        Cell(fmt::format("{:.1f}", place->least_headroom), place->least_headroom),
                        Cell(fmt::format("{:.1f}", place->last_headroom), place->last_headroom),
                        number_cell(place->largest)});
  }
  out.notes = {
      "Octaves from the largest value, with its loss scale, to the format's largest "
      "number, in the measured step with the fewest. Largest value: without the scale."};
  return {table(std::move(out))};
}

}  // namespace

MonitorSection headroom_monitor_section() {
  return {"headroom", "Headroom", write_headroom};
}

}  // namespace lockstep

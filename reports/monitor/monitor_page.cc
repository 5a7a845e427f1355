// The list of sections, in their order.
#include "reports/monitor/monitor_page.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "src/core/counted.h"

#define LOCKSTEP_MONITOR_SECTIONS(section)                                                        \
  section(summary) section(alarms) section(course) section(headroom) section(whatif) section(fp8) \
      section(updates) section(layers)

namespace lockstep {

#define LOCKSTEP_DECLARE(name) MonitorSection name##_monitor_section();
LOCKSTEP_MONITOR_SECTIONS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::span<const MonitorSection> monitor_sections() {
#define LOCKSTEP_ROW(name) name##_monitor_section(),
  static const std::vector<MonitorSection> all = {LOCKSTEP_MONITOR_SECTIONS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return all;
}

ReportPage monitor_page(const MonitorReport& report) {
  ReportPage page{.title = report.data,
                  .subtitle = fmt::format("{}, {} measured, {}",
                                          counted(static_cast<size_t>(report.steps()), "step"),
                                          report.measured.size(),
                                          std::filesystem::path(report.path).filename().string()),
                  .sections = {}};
  for (const MonitorSection& section : monitor_sections()) {
    Blocks blocks = section.write(report);
    if (!blocks.empty()) page.sections.push_back({section.name, section.title, std::move(blocks)});
  }
  return page;
}

std::string tensor_name(const Site& site) {
  // The weight's own name stands between the layer and the role: "live:fc.bias:weight".
  const size_t begin = kLiveNode.size(), end = site.node.rfind(':');
  std::string name = site.node.substr(begin, end - begin);
  while (name.ends_with('.')) name.pop_back();
  return name.empty() ? "the model" : name;
}

std::string place_name(const Site& site) {
  return tensor_name(site) + " " + std::string(to_string(site.role));
}

}  // namespace lockstep

// A monitored run as sections, for every writer, and as JSON.
// A section is a file of this folder that defines its row, NAME_monitor_section(), and its name in
// the list in monitor_page.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "analysis/monitor/monitor_report.h"
#include "reports/writers/json_keys.h"
#include "reports/writers/page.h"

namespace lockstep {

struct MonitorSection {
  std::string_view name, title;
  Blocks (*write)(const MonitorReport& report);  // no blocks: the section is left out
};
std::span<const MonitorSection> monitor_sections();
ReportPage monitor_page(const MonitorReport& report);
// docs/monitor.md lists the keys.
const JsonObject<MonitorReport>& json_object(const MonitorReport*);
std::string monitor_json(const MonitorReport& report);

// "blocks.0.mlp.weight grad_weight", as the sections name a site; without its role.
std::string place_name(const Site& site);
std::string tensor_name(const Site& site);

}  // namespace lockstep

// The run as a whole; lane_json.h, views_json.h and finding_json.h have the rest.
#include "reports/run/report_json.h"

#include <nlohmann/json.hpp>

#include "reports/run/lane_json.h"
#include "reports/run/views_json.h"
#include "reports/writers/json_text.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

ordered_json verification_json(const Verification& verification) {
  ordered_json gates = ordered_json::array();
  for (const VerifiedGate& gate : verification.gates) {
    gates.push_back({{"name", gate.name},
                     {"subject", gate.subject},
                     {"status", gate.status},
                     {"figure", gate.figure}});
  }
  return {{"passed", verification.passed},
          {"lockstep_version", verification.lockstep_version},
          {"created_utc", verification.created_utc},
          {"gates", gates}};
}

}  // namespace

nlohmann::ordered_json report_object(const Report& report) {
  const RunOptions& options = report.options;
  ordered_json out = {{"format", "lockstep-report"},
                      {"format_version", kReportJsonVersion},
                      {"run", report.path},
                      {"command_line", report.command_line},
                      {"model", options.model},
                      {"data", report.data.empty() ? options.data : report.data},
                      {"mode", options.mode == LaneMode::kFree ? "free" : "synced"},
                      {"steps", report.steps},
                      {"steps_asked", options.steps},
                      {"measured_steps", report.measured_steps()},
                      {"seeds", report.seeds},
                      {"unfinished_seeds", report.unfinished_seeds},
                      {"environment", report.environment}};
  if (!options.capture_hash.empty()) out["capture_sha256"] = options.capture_hash;
  if (report.verification) out["verification"] = verification_json(*report.verification);
  out["loss_scales"] = loss_scales_json(report);
  out["costs"] = costs_json(report);
  out["lanes"] = ordered_json::array();
  for (const LaneReport& lane : report.lanes) out["lanes"].push_back(lane_json(report, lane));
  return out;
}

std::string report_json(const Report& report) {
  return json_page(report_object(report));
}

}  // namespace lockstep

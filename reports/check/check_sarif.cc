// See check_sarif.h.
#include "reports/check/check_sarif.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <vector>

#include "analysis/check/alarm_groups.h"
#include "analysis/check/alarm_sentence.h"
#include "analysis/findings/finding_kinds.h"
#include "reports/check/check_text.h"
#include "reports/words/source_place.h"
#include "reports/writers/json_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

// RFC 3986, section 2: all but unreserved characters and '/' are encoded.
std::string uri_of(std::string_view path) {
  std::string uri = path.starts_with('/') ? "file://" : "";
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain =
        std::isalnum(byte) || std::string_view("-._~/").find(c) != std::string::npos;
    uri += is_plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return uri;
}

std::string help_of(const Alarm& alarm) {
  if (alarm.finding.empty()) return std::string(metric_row(alarm.metric).help);
  for (const FindingKindRow& row : finding_kinds()) {
    if (row.name == alarm.finding) return std::string(row.help);
  }
  for (const ChangeAlarm& row : change_alarms()) {
    if (row.name == alarm.finding) return std::string(row.help);
  }
  return alarm.finding;
}

ordered_json text_json(const std::string& text) {
  return {{"text", printable(text)}};
}

class Sarif {
 public:
  Sarif(const CheckResult& result, std::string_view version) : result_(result), version_(version) {}

  std::string write() {
    ordered_json results = ordered_json::array();
    for (const AlarmCause& cause : causes_of(result_.alarms)) results.push_back(result_json(cause));
    ordered_json driver = {{"name", "Lockstep"}, {"version", version_}, {"rules", rules_}};
    ordered_json run = {{"tool", {{"driver", driver}}},
                        {"invocations", ordered_json::array({invocation()})},
                        {"results", results},
                        {"properties",
                         {{"verdict", to_string(result_.verdict)},
                          {"run", printable(result_.run)},
                          {"baseline", printable(result_.baseline)},
                          {"alpha", result_.alpha}}}};
    return json_page({{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
                      {"version", "2.1.0"},
                      {"runs", ordered_json::array({run})}});
  }

 private:
  size_t rule_index(const Alarm& alarm) {
    const std::string id(alarm_subject(alarm));
    for (size_t i = 0; i < rules_.size(); ++i) {
      if (rules_[i]["id"] == id) return i;
    }
    rules_.push_back({{"id", id},
                      {"shortDescription", text_json(help_of(alarm))},
                      {"defaultConfiguration", {{"level", "error"}}}});
    return rules_.size() - 1;
  }

  ordered_json result_json(const AlarmCause& cause) {
    const Alarm& alarm = *cause.first;
    const std::string place = alarm_place(alarm);
    const std::string name = printable(place.empty() ? alarm.lane : alarm.lane + ": " + place);
    ordered_json location;
    if (const auto source = source_place(alarm.marked_line())) {
      location["physicalLocation"] = {{"artifactLocation", {{"uri", uri_of(source->file)}}},
                                      {"region", {{"startLine", source->line}}}};
    }
    location["logicalLocations"] = ordered_json::array({{{"fullyQualifiedName", name}}});
    ordered_json out = {
        {"ruleId", alarm_subject(alarm)},
        {"ruleIndex", rule_index(alarm)},
        {"level", "error"},
        {"message", text_json(fmt::format("{}{}. The limit comes from {}.", alarm.sentence,
                                          following_text(cause), alarm.limit_from))},
        {"locations", ordered_json::array({location})},
        // The same alarm of another run is the same result.
        {"partialFingerprints",
         {{"lockstep/v1", fmt::format("{}/{}", alarm_subject(alarm), name)}}}};
    if (alarm.finding.empty()) {
      out["properties"] = {{"value", json_number(alarm.value)},
                           {"baseline", json_number(alarm.expected)},
                           {"limit", json_number(alarm.limit)}};
    }
    return out;
  }

  // A metric that could not be judged is not a result, but must not be lost.
  ordered_json invocation() const {
    ordered_json notes = ordered_json::array();
    const auto note = [&](const std::string& text, const char* level = "warning") {
      notes.push_back({{"level", level}, {"message", text_json(text)}});
    };
    for (const std::string& problem : result_.problems) note(problem, "error");
    for (const std::string& missing : result_.missing) note("Missing: " + missing);
    for (const std::string& why : result_.why_inconclusive) note("Not judged: " + why);
    return {{"executionSuccessful", result_.verdict != CheckVerdict::kError},
            {"exitCode", exit_code_of(result_.verdict)},
            {"toolExecutionNotifications", notes}};
  }

  const CheckResult& result_;
  std::string_view version_;
  ordered_json rules_ = ordered_json::array();
};

}  // namespace

std::string check_sarif(const CheckResult& result, std::string_view lockstep_version) {
  return Sarif(result, lockstep_version).write();
}

}  // namespace lockstep

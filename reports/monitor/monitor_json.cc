// A monitored run as JSON, for programs.
#include "reports/monitor/monitor_page.h"

namespace lockstep {
namespace {

constexpr int kMonitorJsonVersion = 1;

struct AlarmOf {
  const MonitorReport& report;
  const LiveAlarm& alarm;
};
struct PlaceOf {
  const MonitorReport& report;
  const LiveSiteReport& place;
};

const JsonObject<AlarmOf>& json_object(const AlarmOf*) {
  static const JsonObject<AlarmOf> keys(
      "", {
              {"rule", [](auto& a) { return a.alarm.rule; }, "of `lockstep list alarms`"},
              {"step", [](auto& a) { return a.alarm.step; }},
              {"place",
               [](auto& a) {
                 return a.alarm.site < 0 ? std::string() : place_name(a.report.site(a.alarm.site));
               },
               "layer, weight and role; empty: the step as a whole"},
              {"rank", [](auto& a) { return a.alarm.rank; }, "-1: not known"},
              {"micro_batch", [](auto& a) { return a.alarm.micro_batch; }, "likewise"},
              {"more", [](auto& a) { return static_cast<uint64_t>(a.alarm.more); },
               "other places with the same alarm"},
              {"sentence", [](auto& a) { return a.alarm.sentence; }},
          });
  return keys;
}

const JsonObject<PlaceOf>& json_object(const PlaceOf*) {
  static const JsonObject<PlaceOf> keys(
      "",
      {
          {"layer", [](auto& p) { return p.report.site(p.place.site).layer; }},
          {"role", [](auto& p) { return to_string(p.report.site(p.place.site).role); }},
          {"name", [](auto& p) { return place_name(p.report.site(p.place.site)); }},
          {"format", [](auto& p) { return p.report.formats[static_cast<size_t>(p.place.site)]; }},
          {"count", [](auto& p) { return p.place.count; }, "values over the measured steps"},
          {"zeros", [](auto& p) { return p.place.zeros; }},
          {"nonfinite", [](auto& p) { return p.place.nonfinite; }},
          {"largest", [](auto& p) { return p.place.largest; }, "without the loss scale"},
          {"least_headroom", [](auto& p) { return p.place.least_headroom; }, "octaves"},
          {"last_headroom", [](auto& p) { return p.place.last_headroom; }, "octaves"},
      });
  return keys;
}

}  // namespace

const JsonObject<MonitorReport>& json_object(const MonitorReport*) {
  static const JsonObject<MonitorReport> keys(
      "", {
              format_key<MonitorReport>("lockstep-monitor-report"),
              version_key<MonitorReport>(kMonitorJsonVersion),
              {"data", &MonitorReport::data},
              {"every", &MonitorReport::every, "steps between measured ones"},
              {"measured", &MonitorReport::measured, "the measured steps"},
              {"loss", &MonitorReport::loss, "by step"},
              {"scale", &MonitorReport::scale, "by step"},
              {"gradient_norm", &MonitorReport::gradient_norm, "by step; `null`: not known"},
              {"lr", &MonitorReport::lr, "by step, of the first group"},
              {"seconds", &MonitorReport::seconds, "by step"},
              {"skips", &MonitorReport::skips, "steps that the scaler skipped"},
              {"update_norm", &MonitorReport::update_norm, "by measured step"},
              {"weight_norm", &MonitorReport::weight_norm, "by measured step"},
              {"alarms", [](auto& r) { return each<AlarmOf>(r, r.alarms); }},
              {"places", [](auto& r) { return each<PlaceOf>(r, r.places); }},
          });
  return keys;
}

std::string monitor_json(const MonitorReport& report) {
  return json_page(json_object(&report).write(report));
}

}  // namespace lockstep

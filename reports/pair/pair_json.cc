// See pair_json.h.
#include "reports/pair/pair_json.h"

#include "reports/pair/change_sentence.h"
#include "reports/run/finding_json.h"
#include "reports/run/report_json.h"

namespace lockstep {
namespace {

struct LanesOf {
  const ReportPair& pair;
  const LaneComparison& lanes;

  bool has_before() const { return lanes.lanes.before >= 0; }
  bool has_after() const { return lanes.lanes.after >= 0; }
};

// The findings that the matches choose; as the second run has them, where it has them.
template <class Choose>
std::vector<FindingOf> findings_of(const LanesOf& l, Choose choose) {
  std::vector<FindingOf> out;
  for (const FindingPair& match : l.lanes.findings) {
    if (!choose(match)) continue;
    const bool is_old = match.after < 0;
    const LaneReport& lane = is_old ? l.pair.lane_before(l.lanes) : l.pair.lane_after(l.lanes);
    const auto index = static_cast<size_t>(is_old ? match.before : match.after);
    out.push_back({is_old ? l.pair.before : l.pair.after, lane, lane.findings[index]});
  }
  return out;
}

}  // namespace

const JsonObject<ShareChange>& json_object(const ShareChange*) {
  static const JsonObject<ShareChange> keys(
      "", {
              {"layer", &ShareChange::layer},
              {"role", [](auto& c) { return to_string(c.role); }},
              {"share", &ShareChange::what, "`to zero`, `to infinity or NaN`, `saturated`"},
              {"before", &ShareChange::before, "at the worst site"},
              {"after", &ShareChange::after, "likewise"},
          });
  return keys;
}

const JsonObject<SetupDifference>& json_object(const SetupDifference*) {
  static const JsonObject<SetupDifference> keys("", {
                                                        {"name", &SetupDifference::name},
                                                        {"before", &SetupDifference::baseline},
                                                        {"after", &SetupDifference::run},
                                                    });
  return keys;
}

namespace {

const JsonObject<LanesOf>& json_object(const LanesOf*) {
  using Name = OrNull<std::string>;
  static const JsonObject<LanesOf> keys(
      "",
      {
          {"before",
           [](auto& l) {
             return l.has_before() ? Name{l.pair.lane_before(l.lanes).info.name} : Name{};
           },
           "its name in the first run; `null`: in the second one only"},
          {"after",
           [](auto& l) {
             return l.has_after() ? Name{l.pair.lane_after(l.lanes).info.name} : Name{};
           },
           "likewise"},
          {"change",
           [](auto& l) { return to_string(l.lanes.change); },
           "`better`, `worse`, `same` by the outcomes; `not comparable`: one was not judged, or "
           "is missing",
           {"better", "worse", "same", "not comparable"}},
          {"policy_before", [](auto& l) { return l.lanes.lanes.policy.before; },
           "settings of the policy that only the first run has, by section and key: "
           "`loss_scale.kind = \"static\"`"},
          {"policy_after", [](auto& l) { return l.lanes.lanes.policy.after; }, "likewise"},
          {"sentence",
           only_if([](auto& l) { return is_shown(l.pair, l.lanes); },
                   [](auto& l) { return change_sentence(l.pair, l.lanes); }),
           "what changed; absent of references and twins"},
          {"findings_gone",
           [](auto& l) { return findings_of(l, [](auto& m) { return m.after < 0; }); },
           "findings of the first run alone"},
          {"findings_new",
           [](auto& l) {
             return findings_of(l, [](auto& m) { return m.after >= 0 && m.before < 0; });
           },
           "of the second run alone"},
          {"findings_in_both",
           [](auto& l) {
             return findings_of(l, [](auto& m) { return m.after >= 0 && m.before >= 0; });
           },
           "as the second run has them"},
          {"layers", [](auto& l) { return l.lanes.shares; },
           "shares that changed by 0.0001 or more, the largest change first"},
      });
  return keys;
}

}  // namespace

const JsonObject<ReportPair>& json_object(const ReportPair*) {
  static const JsonObject<ReportPair> keys(
      "", {
              format_key<ReportPair>("lockstep-report-pair"),
              version_key<ReportPair>(kPairJsonVersion),
              {"same_graph", [](auto& p) { return p.changes.same_graph(); },
               "false: only outcomes are compared, and findings by the names of their places"},
              {"settings", [](auto& p) { return p.changes.settings; }, "options that differ"},
              {"lanes", [](auto& p) { return each<LanesOf>(p, p.changes.lanes); },
               "the gravest change first; a lane of each run, matched by name"},
              {"before", &ReportPair::before, "the first run's report"},
              {"after", &ReportPair::after, "the second one's"},
          });
  return keys;
}

std::string pair_json(const ReportPair& pair) {
  return json_page(json_value(pair));
}

}  // namespace lockstep

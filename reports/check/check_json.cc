// The rows of a check's keys.
#include "reports/check/check_json.h"

#include "reports/check/check_text.h"

namespace lockstep {
namespace {

std::string_view unit_name(MetricUnit unit) {
  switch (unit) {
    case MetricUnit::kShare:
      return "share";
    case MetricUnit::kOctaves:
      return "log2";
    case MetricUnit::kDistance:
      return "octaves";
    case MetricUnit::kLoss:
      return "loss";
    case MetricUnit::kYesNo:
      break;
  }
  return "yes_no";
}

bool is_number(const Alarm& alarm) {
  return alarm.finding.empty();
}

constexpr const char* kNumberOrFinding = R"({"oneOf": [
    {"required": ["metric", "unit", "value", "baseline", "limit", "excess"]},
    {"required": ["finding"]}]})";

}  // namespace

const JsonObject<Alarm>& json_object(const Alarm*) {
  static const JsonObject<Alarm> keys(
      "alarm",
      {
          {"lane", &Alarm::lane},
          {"step", [](auto& a) { return known(a.step); },
           "the first step beyond the limit; absent: of the whole run"},
          {"layer", filled(&Alarm::layer), "module path"},
          {"op", filled(&Alarm::op)},
          {"role", filled(&Alarm::role), "`activation`, `grad_weight`, ..."},
          {"point", filled(&Alarm::point), "", {"operand", "output", "accumulator", "storage"}},
          {"parameter", filled(&Alarm::parameter),
           "of a number of a parameter or of a parameter group"},
          {"source_line", filled(&Alarm::source_line), "`model.py:12`"},
          {"metric", only_if(is_number, [](auto& a) { return metric_row(a.metric).name; }),
           "absent for a finding"},
          {"unit",
           only_if(is_number, [](auto& a) { return unit_name(metric_row(a.metric).unit); }),
           "`share` (0 to 1), `log2` (of a size or an error), `octaves` (a distance), `loss`, "
           "`yes_no` (0 or 1)",
           {"share", "log2", "octaves", "loss", "yes_no"}},
          {"value", only_if(is_number, &Alarm::value), "the run's"},
          {"baseline", only_if(is_number, &Alarm::expected), "the mean of the baseline's runs"},
          {"limit", only_if(is_number, &Alarm::limit)},
          {"excess", only_if(is_number, &Alarm::times),
           "distance from the baseline over the allowed one; `null`: none is allowed"},
          {"finding", filled(&Alarm::finding),
           "instead of `metric`: a kind of finding that the baseline does not have; or `setting`, "
           "`other inputs`, `no gradient`: what was changed"},
          {"origin", filled(&Alarm::origin),
           "where its values come from, if the baseline does not have that place"},
          {"gone", filled(&Alarm::gone),
           "an op that the baseline has just before the place, and the run lacks"},
          {"limit_from", &Alarm::limit_from, "the runs, or the line of the rules file"},
          {"sentence", &Alarm::sentence, "all of it in words"},
      },
      kNumberOrFinding);
  return keys;
}

const JsonObject<JudgedFamily>& json_object(const JudgedFamily*) {
  static const JsonObject<JudgedFamily> keys(
      "", {
              {"lane", &JudgedFamily::lane},
              {"metric", [](auto& family) { return metric_row(family.metric).name; }},
              {"judged", &JudgedFamily::numbers},
          });
  return keys;
}

const JsonObject<Ignored>& json_object(const Ignored*) {
  static const JsonObject<Ignored> keys(
      "", {
              {"rule", &Ignored::rule, "its patterns and its line"},
              {"reason", &Ignored::reason},
              {"expires", &Ignored::expires, "the last day on which it applies, `2027-01-31`"},
              {"expired", &Ignored::has_expired, "then it was not applied"},
              {"alarms", &Ignored::alarms, "that it ignored"},
          });
  return keys;
}

constexpr const char* kErrorHasProblems = R"({
    "if": {"properties": {"verdict": {"const": "error"}}},
    "then": {"required": ["problems"], "properties": {"exit_code": {"const": 2}}}})";

const JsonObject<CheckResult>& json_object(const CheckResult*) {
  static const JsonObject<CheckResult> keys(
      "",
      {
          format_key<CheckResult>("lockstep-check"),
          version_key<CheckResult>(kCheckJsonVersion),
          {"verdict",
           [](auto& r) { return to_string(r.verdict); },
           "`identical`: every bit; `within noise`; `improved`: nothing worse, something better; "
           "`regression`; `incomplete`: nothing worse, but a part of the baseline is missing; "
           "`inconclusive`: nothing, or not enough, to compare; `error`: nothing was judged",
           {"identical", "within noise", "improved", "regression", "incomplete", "inconclusive",
            "error"}},
          {"exit_code", [](auto& r) { return exit_code_of(r.verdict); }, "", {0, 1, 2, 3}},
          {"headline", check_headline, "why, in words; of a regression its origin"},
          {"run", &CheckResult::run, "what was checked: a model, a capture or a run file"},
          {"baseline", &CheckResult::baseline, "the baseline's path"},
          {"alpha", &CheckResult::alpha, "how often a run as good as the baseline's fails"},
          {"ensemble",
           [](auto& r) { return to_string(r.draw); },
           "what the runs behind the limits differ in: `ulps` of the weights, or `seeds`",
           {"ulps", "seeds"}},
          {"ensemble_runs", &CheckResult::runs, "how many they are"},
          {"steps", &CheckResult::steps, "of the run that were compared"},
          {"judged", &CheckResult::judged, "numbers"},
          {"shared_nonfinite", &CheckResult::shared_nonfinite,
           "places with NaN or infinite values in the run and in the baseline"},
          {"first_step_with_other_bits", [](auto& r) { return known(r.first_other_bits); },
           "in some lane; absent: all bits are the baseline's"},
          {"baseline_note", filled(&CheckResult::baseline_note),
           "of a folder of baselines: which one fits best, and what it differs in; absent: an "
           "exact fit"},
          {"first_difference", filled(&CheckResult::first_difference),
           "with `--a` and `--b`: the first place with other bits, and its first element or why "
           "that is not known"},
          {"problems", filled(&CheckResult::problems),
           "only with `error`: what is wrong, and what to do"},
          {"alarms", &CheckResult::alarms, "numbers beyond their limits, the origin first"},
          {"improvements", &CheckResult::improvements,
           "numbers that are better than the limit on the other side"},
          {"families", &CheckResult::families,
           "how many numbers of a metric were judged in a lane"},
          {"ignored", &CheckResult::ignored, "the rules file's ignore rules"},
          {"changes", &CheckResult::changes, "what is not the same in model, loop, lanes and data"},
          {"missing", &CheckResult::missing,
           "what the baseline has and the run lacks; required metrics that were judged nowhere"},
          {"why_inconclusive", &CheckResult::why_inconclusive},
          {"remarks", &CheckResult::remarks},
      },
      kErrorHasProblems);
  return keys;
}

std::string check_json(const CheckResult& result) {
  return json_page(json_value(result));
}

}  // namespace lockstep

// See alarm_sentence.h.
#include "analysis/check/alarm_sentence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/findings.h"
#include "src/core/text.h"
#include "src/graph/site.h"

namespace lockstep {
namespace {

constexpr int kLossDigits = 6;

// A limit that only allows for the rounding of the number itself: "limit 1.0000000007 times" is
// hard to read.
bool must_not_change(const Alarm& a) {
  constexpr double kRounding = 1e-8;  // octaves
  return std::fabs(a.limit - a.expected) < kRounding;
}

// Enough digits to tell a ratio near 1 from 1: "1.0045", "1.0000013", "0.51", "37".
std::string ratio_text(double octaves) {
  const double ratio = std::exp2(octaves), apart = std::fabs(ratio - 1);
  if (apart == 0) return "1";
  if (apart >= 0.1 || !std::isfinite(ratio)) return two_digits(ratio);
  const int decimals = 1 + static_cast<int>(std::ceil(-std::log10(apart)));
  return fmt::format("{:.{}f}", ratio, decimals);
}

std::string lane_and_step(const Alarm& alarm) {
  std::string text = "lane " + alarm.lane;
  if (alarm.step >= 0) text += fmt::format(", step {}", alarm.step);
  return text;
}

std::string part_or_none(double share) {
  return share == 0 ? "none" : share_text(share);
}

std::string with_digits(double x, int digits) {
  return fmt::format("{:.{}g}", x, digits);
}

// `print(x, digits)`; 0: as few digits as usual. "80% ..., limit 80%" does not show what is wrong,
// so numbers that differ get digits until their texts do.
template <typename Print>
AlarmNumbers with_enough_digits(const Alarm& a, Print print) {
  constexpr int kFirst = 3, kLast = 17;  // 17 digits suffice for any two doubles
  const auto texts = [&](int digits) {
    return AlarmNumbers{print(a.value, digits), print(a.expected, digits), print(a.limit, digits)};
  };
  AlarmNumbers numbers = texts(0);
  const auto read_alike = [&] {
    return (numbers.value == numbers.limit && a.value != a.limit) ||
           (numbers.expected == numbers.limit && a.expected != a.limit);
  };
  for (int digits = kFirst; digits <= kLast && read_alike(); ++digits) numbers = texts(digits);
  return numbers;
}

AlarmNumbers octave_numbers(const Alarm& a) {
  if (std::isinf(a.expected)) {  // the logarithm of none at all
    AlarmNumbers numbers = with_enough_digits(a, [](double x, int digits) {
      return digits == 0 ? two_digits(std::exp2(x)) : with_digits(std::exp2(x), digits);
    });
    numbers.expected = "0";
    return numbers;
  }
  AlarmNumbers numbers = with_enough_digits(a, [&](double x, int digits) {
    const double octaves = x - a.expected;
    return (digits == 0 ? ratio_text(octaves) : with_digits(std::exp2(octaves), digits)) + " times";
  });
  numbers.expected = "1";
  return numbers;
}

std::string what(const Alarm& a) {
  const Metric& metric = metric_row(a.metric);
  const AlarmNumbers numbers = alarm_numbers(a);
  switch (metric.unit) {
    case MetricUnit::kShare:
      return fmt::format("{} {}; in the baseline {}, limit {}", numbers.value, metric.words,
                         numbers.expected, numbers.limit);
    case MetricUnit::kOctaves:
      if (std::isinf(a.expected)) {
        return fmt::format("{} {} of the values' size; in the baseline exactly 0", metric.words,
                           numbers.value);
      }
      return fmt::format("{} {} as large as the baseline's; {}", metric.words, numbers.value,
                         must_not_change(a) ? "no change is allowed" : "limit " + numbers.limit);
    case MetricUnit::kDistance:
      return fmt::format("{} {} from the baseline's; limit {}", metric.words, numbers.value,
                         numbers.limit);
    case MetricUnit::kLoss:
      return fmt::format("{} {}, in the baseline {}; limit {}", metric.words, numbers.value,
                         numbers.expected, numbers.limit);
    case MetricUnit::kYesNo:
      break;
  }
  return fmt::format("{}{}", metric.words,
                     a.value > a.expected ? "; the baseline does not" : " in the baseline only");
}

}  // namespace

// The point says what the role does not: of "accumulator accumulator" or "activation output" one
// word is enough.
std::string alarm_place(const Alarm& alarm) {
  if (alarm.site < 0) {
    const bool has_op = !alarm.layer.empty() && !alarm.op.empty();
    return alarm.parameter + alarm.layer + (has_op ? " " : "") + alarm.op;
  }
  const std::string_view output = to_string(Point::kOutput), storage = to_string(Point::kStorage);
  std::vector<std::string> words = {alarm.layer.empty() ? "(no layer)" : alarm.layer};
  if (!alarm.op.empty()) words.push_back(alarm.op);
  const bool is_plain_output = alarm.point == output && alarm.role == to_string(Role::kActivation);
  if (alarm.point == storage) {
    words.push_back("stored " + alarm.role);
  } else {
    if (alarm.role != alarm.point && !is_plain_output) words.push_back(alarm.role);
    words.push_back(alarm.point);
  }
  return join(words, " ");
}

AlarmNumbers alarm_numbers(const Alarm& a) {
  if (!a.finding.empty()) return {};
  switch (metric_row(a.metric).unit) {
    case MetricUnit::kShare:
      return with_enough_digits(a, [](double x, int digits) {
        return digits == 0 || x == 0 || x >= 1 ? part_or_none(x)
                                               : with_digits(100 * x, digits) + "%";
      });
    case MetricUnit::kOctaves:
      return octave_numbers(a);
    case MetricUnit::kDistance:
      return with_enough_digits(a, [](double x, int digits) {
        return (digits == 0 ? two_digits(x) : with_digits(x, digits)) + " octaves";
      });
    case MetricUnit::kLoss:
      return with_enough_digits(
          a, [](double x, int digits) { return with_digits(x, std::max(digits, kLossDigits)); });
    case MetricUnit::kYesNo:
      break;
  }
  const auto word = [](double x) { return x > 0 ? "yes" : "no"; };
  return {word(a.value), word(a.expected), word(a.limit)};
}

std::string_view alarm_subject(const Alarm& alarm) {
  return alarm.finding.empty() ? metric_row(alarm.metric).name : std::string_view(alarm.finding);
}

std::string alarm_sentence(const Alarm& alarm) {
  const std::string line = alarm.source_line.empty() ? "" : " (" + alarm.source_line + ")";
  if (alarm.finding == kSetting) return alarm.sentence + line;
  std::string text = lane_and_step(alarm);
  if (!alarm.finding.empty()) {
    const bool is_change =
        std::ranges::count(change_alarms(), alarm.finding, &ChangeAlarm::name) > 0;
    return text + ": " + alarm.sentence + (is_change ? line : "");  // those of findings name theirs
  }
  const std::string place = alarm_place(alarm);
  if (!place.empty()) text += ": " + place;
  text += line;
  text += ": " + what(alarm);
  if (!alarm.origin.empty()) {
    text += "; it comes from " + alarm.origin + ", which the baseline does not have";
  }
  if (!alarm.gone.empty()) text += "; before it, the baseline has " + alarm.gone;
  return text;
}

void describe_finding(const RunFile& run, int lane, const std::string& kind, Alarm& alarm) {
  for (const auto& [finding, sentence] : find_findings(run, lane)) {
    if (row_of(finding.kind).name != kind) continue;
    alarm.sentence = sentence;
    alarm.step = finding.first_step;
    if (finding.site >= 0) {
      alarm.site = finding.site;
      const Site& site = run.sites().sites[static_cast<size_t>(finding.site)];
      alarm.layer = site.layer;
      alarm.op = site.op;
      alarm.role = to_string(site.role);
      alarm.point = to_string(site.point);
      alarm.source_line = site.source_line;
    }
    return;
  }
}

}  // namespace lockstep

// An alarm's numbers and sentence, as a reader meets them.
#include "analysis/check/alarm_sentence.h"

#include <doctest/doctest.h>

#include <string>

namespace lockstep {
namespace {

Alarm alarm(MetricId metric, double value, double expected, double limit) {
  return {.lane = "fp16", .metric = metric, .value = value, .expected = expected, .limit = limit};
}

TEST_CASE("a value beyond its limit does not read like the limit") {
  const AlarmNumbers share = alarm_numbers(alarm(MetricId::kToZero, 0.8004, 0.31, 0.8001));
  CHECK(share.value == "80.04%");
  CHECK(share.limit == "80.01%");
  CHECK(share.expected == "31%");
  const AlarmNumbers loss = alarm_numbers(alarm(MetricId::kEndLoss, 2.00000021, 1.5, 2.00000011));
  CHECK(loss.value == "2.0000002");
  CHECK(loss.limit == "2.0000001");
  const AlarmNumbers size = alarm_numbers(alarm(MetricId::kError, 3.001, 1, 3));
  CHECK(size.value == "4.003 times");
  CHECK(size.limit == "4 times");
  const AlarmNumbers apart = alarm_numbers(alarm(MetricId::kExponents, 0.5004, 0, 0.5001));
  CHECK(apart.value == "0.5004 octaves");
  CHECK(apart.limit == "0.5001 octaves");
  const AlarmNumbers plain = alarm_numbers(alarm(MetricId::kToZero, 0.8, 0.1, 0.2));
  CHECK(plain.value == "80%");
  CHECK(plain.limit == "20%");
}

TEST_CASE("a limit without room is said in words") {
  const std::string text = alarm_sentence(alarm(MetricId::kLearningRate, -2, -4, -4 + 1e-9));
  CHECK(text ==
        "lane fp16: the learning rate is 4 times as large as the baseline's; no change is "
        "allowed");
}

}  // namespace
}  // namespace lockstep

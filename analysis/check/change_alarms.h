// Alarms about what was changed, such as a setting or a model. Alarms about its effects are those
// of metrics and of kinds of findings.
#pragma once

#include <span>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view kOtherInputs = "other inputs", kNoGradient = "no gradient",
                                  kSetting = "setting";

struct ChangeAlarm {
  std::string_view name, help;
};
std::span<const ChangeAlarm> change_alarms();

}  // namespace lockstep

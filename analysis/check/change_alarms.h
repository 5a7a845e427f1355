// Alarms that are neither of a metric nor of a kind of finding: what was changed, not what it did.
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

// See change_alarms.h.
#include "analysis/check/change_alarms.h"

namespace lockstep {

std::span<const ChangeAlarm> change_alarms() {
  static constexpr ChangeAlarm kAlarms[] = {
      {kSetting, "a setting of the loop or of an op that is not the baseline's"},
      {kOtherInputs, "batches of another shape than the baseline's"},
      {kNoGradient, "a parameter without a gradient that has one in the baseline"},
  };
  return kAlarms;
}

}  // namespace lockstep

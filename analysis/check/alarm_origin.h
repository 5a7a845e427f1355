// Where an alarm begins: the op upstream that the baseline does not have, the step from which the
// number is beyond its limit, and the place that a number of a whole lane leads to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "analysis/check/check_result.h"
#include "analysis/check/judged_run.h"

namespace lockstep {

// By lane of the run, the first step whose bits are not the recorded run's.
using FirstOtherBits = std::map<std::string, int64_t>;

// Completes alarms and improvements, sentences included. `parted`: parted_pairs.h.
void locate_alarms(const JudgedRun& run, const FirstOtherBits& first_other_bits,
                   const std::set<size_t>& parted, CheckResult& result);

}  // namespace lockstep

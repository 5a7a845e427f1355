// The exponents that a format holds, for charts.
#pragma once

#include "emulation/format/format.h"
#include "reports/writers/chart.h"

namespace lockstep {

FormatWindow window_of(const Format& format);

}  // namespace lockstep

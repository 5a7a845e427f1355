// See format_window.h.
#include "reports/words/format_window.h"

namespace lockstep {

FormatWindow window_of(const Format& format) {
  const int least = format.has_subnormals() ? format.emin - format.precision + 1 : format.emin;
  return {
      .name = format.name, .min_subnormal = least, .min_normal = format.emin, .max = format.emax};
}

}  // namespace lockstep

// See advice.h.
#include "analysis/search/advice.h"

#include <algorithm>

namespace lockstep {

const RangeTable* Advice::ranges_of(const std::string& format) const {
  const auto found =
      std::ranges::find_if(ranges, [&](const RangeTable& r) { return r.format->name == format; });
  return found == ranges.end() ? nullptr : &*found;
}

}  // namespace lockstep

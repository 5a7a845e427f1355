// See search_budget.h.
#include "analysis/search/search_budget.h"

#include <algorithm>

namespace lockstep {

bool RemainingBudget::any() const {
  using Minutes = std::chrono::duration<double, std::ratio<60>>;
  const Minutes spent = std::chrono::steady_clock::now() - start_;
  return budget_.candidates > 0 && (!budget_.minutes || spent.count() < *budget_.minutes);
}

size_t RemainingBudget::take(size_t wanted) {
  if (!any()) return 0;
  const auto count = std::min(static_cast<int64_t>(wanted), budget_.candidates);
  budget_.candidates -= count;
  return static_cast<size_t>(count);
}

}  // namespace lockstep

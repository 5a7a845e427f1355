// What a search may still run: candidates, and minutes from its start.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep {

struct SearchBudget {
  int64_t candidates = 24;
  std::optional<double> minutes;  // no replay begins later
};

class RemainingBudget {
 public:
  explicit RemainingBudget(const SearchBudget& budget) : budget_(budget) {}

  // How many of `wanted` candidates may run now; subtracts them from the budget.
  size_t take(size_t wanted);
  bool any() const;

 private:
  SearchBudget budget_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep

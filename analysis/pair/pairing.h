// Which items of two lists belong together? Pairs are made pass by pass, each among what the passes
// before it left free.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace lockstep {

// The longest common subsequence of lists of n and m items: pairs of positions, ascending in both.
// Cost: nothing for an equal head and tail, else a table of the rest. Where that would be huge, the
// rest has no pairs.
std::vector<std::pair<size_t, size_t>> align(size_t n, size_t m,
                                             const std::function<bool(size_t, size_t)>& equal);

class Pairing {
 public:
  Pairing() = default;
  Pairing(size_t before_count, size_t after_count)
      : after_of_(before_count, -1), before_of_(after_count, -1) {}

  // Each free item of `before` and the first free one of `after` for which belong_together(i, j).
  template <typename BelongTogether>
  void pair_first(BelongTogether belong_together) {
    for (size_t i = 0; i < after_of_.size(); ++i) {
      for (size_t j = 0; j < before_of_.size() && after_of_[i] < 0; ++j) {
        if (before_of_[j] < 0 && belong_together(i, j)) pair(i, j);
      }
    }
  }
  // Pairs those of some free items that keep their order.
  template <typename BelongTogether>
  void pair_in_order(const std::vector<size_t>& before, const std::vector<size_t>& after,
                     BelongTogether belong_together) {
    const auto equal = [&](size_t i, size_t j) { return belong_together(before[i], after[j]); };
    for (const auto& [i, j] : align(before.size(), after.size(), equal)) pair(before[i], after[j]);
  }

  size_t size() const { return after_of_.size(); }  // of the list `before`
  // The partner's index; -1: free.
  int after_of(size_t i) const { return after_of_[i]; }
  int before_of(size_t j) const { return before_of_[j]; }
  std::vector<size_t> free_before() const { return free_of(after_of_); }
  std::vector<size_t> free_after() const { return free_of(before_of_); }
  size_t pair_count() const { return size() - free_before().size(); }
  // visit(item of before, item of after), pair by pair in the order of `before`.
  template <typename Item, typename Visit>
  void each(const std::vector<Item>& before, const std::vector<Item>& after, Visit visit) const {
    for (size_t i = 0; i < size(); ++i) {
      if (after_of_[i] >= 0) visit(before[i], after[static_cast<size_t>(after_of_[i])]);
    }
  }

 private:
  static std::vector<size_t> free_of(const std::vector<int>& partners) {
    std::vector<size_t> free;
    for (size_t i = 0; i < partners.size(); ++i) {
      if (partners[i] < 0) free.push_back(i);
    }
    return free;
  }
  void pair(size_t i, size_t j) {
    after_of_[i] = static_cast<int>(j);
    before_of_[j] = static_cast<int>(i);
  }

  std::vector<int> after_of_, before_of_;
};

}  // namespace lockstep

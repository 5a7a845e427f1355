// See pairing.h.
#include "analysis/pair/pairing.h"

#include <algorithm>
#include <cstdint>

namespace lockstep {

constexpr size_t kMostAligned = size_t{1} << 26;  // numbers in the table

std::vector<std::pair<size_t, size_t>> align(size_t n, size_t m,
                                             const std::function<bool(size_t, size_t)>& equal) {
  std::vector<std::pair<size_t, size_t>> pairs;
  size_t head = 0;
  while (head < n && head < m && equal(head, head)) pairs.emplace_back(head, head), ++head;
  size_t tail = 0;
  while (tail + head < n && tail + head < m && equal(n - 1 - tail, m - 1 - tail)) ++tail;
  const size_t rows = n - head - tail, columns = m - head - tail;
  if (rows > 0 && columns > 0 && rows * columns <= kMostAligned) {
    std::vector<uint32_t> best((rows + 1) * (columns + 1), 0);
    const auto at = [&](size_t i, size_t j) -> uint32_t& { return best[i * (columns + 1) + j]; };
    for (size_t i = rows; i-- > 0;) {
      for (size_t j = columns; j-- > 0;) {
        at(i, j) =
            equal(head + i, head + j) ? at(i + 1, j + 1) + 1 : std::max(at(i + 1, j), at(i, j + 1));
      }
    }
    for (size_t i = 0, j = 0; i < rows && j < columns;) {
      if (equal(head + i, head + j)) {
        pairs.emplace_back(head + i++, head + j++);
      } else if (at(i + 1, j) >= at(i, j + 1)) {
        ++i;
      } else {
        ++j;
      }
    }
  }
  for (size_t k = tail; k-- > 0;) pairs.emplace_back(n - 1 - k, m - 1 - k);
  return pairs;
}

}  // namespace lockstep

// Gathering by plain copies. For the gradient of rows, a stable sort first orders the positions by
// row, so that every row's chain can run on its own thread.
#include "emulation/kernels/scalar/elements/gather.h"

#include <algorithm>

#include "emulation/kernels/scalar/products/chain_add.h"
#include "src/core/chunks.h"

namespace lockstep {

template <typename T>
void pick_rows(const RowPick& p, const T* x, T* y) {
  parallel_chunks(p.outer * p.count, row_grain(p.inner), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / p.count * p.rows + p.index[i % p.count];
      std::copy_n(x + row * p.inner, p.inner, y + i * p.inner);
    }
  });
}

template <typename T>
void pick_rows_backward(const RowPick& p, const T* dy, T* dx, const Accumulator& accumulator) {
  // Positions of row k: order[first[k]] to order[first[k + 1] - 1], ascending.
  std::vector<int64_t> first(static_cast<size_t>(p.rows + 1), 0);
  for (int64_t j = 0; j < p.count; ++j) ++first[static_cast<size_t>(p.index[j]) + 1];
  for (size_t k = 1; k < first.size(); ++k) first[k] += first[k - 1];
  std::vector<int64_t> order(static_cast<size_t>(p.count)), next(first);
  for (int64_t j = 0; j < p.count; ++j) {
    order[static_cast<size_t>(next[static_cast<size_t>(p.index[j])]++)] = j;
  }
  with_chain_add<T>(accumulator, [&](auto add) {
    parallel_chunks(p.outer * p.rows, row_grain(p.inner), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t outer = i / p.rows, row = i % p.rows;
        T* sum = dx + i * p.inner;
        std::fill_n(sum, p.inner, T(0));
        if (row == p.skip) continue;
        for (int64_t at = first[static_cast<size_t>(row)]; at < first[static_cast<size_t>(row) + 1];
             ++at) {
          const T* term = dy + (outer * p.count + order[static_cast<size_t>(at)]) * p.inner;
          for (int64_t c = 0; c < p.inner; ++c) sum[c] = add(sum[c], term[c]);
        }
      }
    });
  });
}

namespace {

// body(position in y, place in x), ascending j for every (o, i); different o run on several
// threads.
template <typename Body>
void for_elements(const ElementPick& p, Body body) {
  const auto outer = static_cast<int64_t>(p.outer.size());
  const auto inner = static_cast<int64_t>(p.inner.size());
  parallel_chunks(outer, row_grain(p.count * inner), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t j = 0; j < p.count; ++j) {
        for (int64_t i = 0; i < inner; ++i) {
          const int64_t at = (o * p.count + j) * inner + i;
          body(at, p.outer[static_cast<size_t>(o)] + p.index[at] * p.stride +
                       p.inner[static_cast<size_t>(i)]);
        }
      }
    }
  });
}

}  // namespace

template <typename T>
void pick_elements(const ElementPick& p, const T* x, T* y) {
  for_elements(p, [&](int64_t at, int64_t place) { y[at] = x[place]; });
}

template <typename T>
void pick_elements_backward(const ElementPick& p, const T* dy, T* dx,
                            const Accumulator& accumulator) {
  with_chain_add<T>(accumulator, [&](auto add) {
    for_elements(p, [&](int64_t at, int64_t place) { dx[place] = add(dx[place], dy[at]); });
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                                       \
  template void pick_rows(const RowPick&, const T*, T*);                              \
  template void pick_rows_backward(const RowPick&, const T*, T*, const Accumulator&); \
  template void pick_elements(const ElementPick&, const T*, T*);                      \
  template void pick_elements_backward(const ElementPick&, const T*, T*, const Accumulator&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE
template void pick_rows(const RowPick&, const int32_t*, int32_t*);
template void pick_elements(const ElementPick&, const int32_t*, int32_t*);

}  // namespace lockstep

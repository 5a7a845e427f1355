// Cross entropy by log-sum-exp.
#include "emulation/kernels/scalar/elements/loss.h"

#include <algorithm>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/scalar/elements/softmax.h"
#include "emulation/kernels/scalar/rounding/nearest_round.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

constexpr int64_t kTileElements = 2048;  // of one tile's arrays, 8 KiB of floats each

// Rows [begin, end) of x, made contiguous: row r of the tile is position begin + r over its
// classes.
template <typename T>
class Tile {
 public:
  Tile(const RowFunctions<T>& functions, const CrossEntropyArgs<T>& args, int64_t max_rows)
      : functions_(functions),
        args_(args),
        shifted_(static_cast<size_t>(max_rows * args.classes)),
        exponentials_(shifted_.size()),
        sums_(static_cast<size_t>(max_rows)) {}

  // x - max, exp(x - max) and the sum of the latter, row by row.
  void load(int64_t begin, int64_t end) {
    const int64_t rows = end - begin, classes = args_.classes;
    T* shifted = shifted_.data();
    if (args_.spatial == 1) {
      std::copy(args_.x + begin * classes, args_.x + end * classes, shifted);
    } else {
      for_elements(begin, end, [&](int64_t from, int64_t to) { shifted[to] = args_.x[from]; });
    }
    for (int64_t r = 0; r < rows; ++r) {
      T* row = shifted + r * classes;
      const T max = row_max(row, classes);
      for (int64_t c = 0; c < classes; ++c) row[c] -= max;
    }
    functions_.exp(shifted, exponentials_.data(), rows * classes);
    for (int64_t r = 0; r < rows; ++r) {
      sums_[static_cast<size_t>(r)] = static_cast<T>(
          sum_array<T>(exponentials(r), classes, *args_.accumulator, functions_.block_sum));
    }
  }
  // Writes the rows of `values` (laid out as exponentials) to `out`, laid out as x.
  void store(int64_t begin, int64_t end, T* out) const {
    const T* values = exponentials_.data();
    if (args_.spatial == 1) {
      std::copy(values, values + (end - begin) * args_.classes, out + begin * args_.classes);
    } else {
      for_elements(begin, end, [&](int64_t to, int64_t from) { out[to] = values[from]; });
    }
  }
  void take_logs(int64_t rows) { functions_.log(sums_.data(), sums_.data(), rows); }

  const T* shifted(int64_t r) const { return shifted_.data() + r * args_.classes; }
  T* exponentials(int64_t r) { return exponentials_.data() + r * args_.classes; }
  T sum(int64_t r) const { return sums_[static_cast<size_t>(r)]; }  // its log after take_logs

 private:
  // body(index into x, index into the tile) for every element, positions innermost.
  template <typename Body>
  void for_elements(int64_t begin, int64_t end, Body body) const {
    const int64_t classes = args_.classes, spatial = args_.spatial;
    for (int64_t at = begin; at < end;) {
      const int64_t n = at / spatial, s = at % spatial;
      const int64_t length = std::min(end - at, spatial - s);
      for (int64_t c = 0; c < classes; ++c) {
        const int64_t from = (n * classes + c) * spatial + s, to = (at - begin) * classes + c;
        for (int64_t i = 0; i < length; ++i) body(from + i, to + i * classes);
      }
      at += length;
    }
  }

  const RowFunctions<T>& functions_;
  const CrossEntropyArgs<T>& args_;
  std::vector<T> shifted_, exponentials_, sums_;
};

// Calls body(tile, begin, end) with every tile loaded; tiles are spread over the threads.
template <typename T, typename Body>
void for_tiles(const RowFunctions<T>& functions, const CrossEntropyArgs<T>& args, Body body) {
  const int64_t max_rows = std::max<int64_t>(1, kTileElements / args.classes);
  const int64_t rows = args.batch * args.spatial;
  parallel_chunks(rows, row_grain(args.classes), [&](int64_t chunk_begin, int64_t chunk_end) {
    Tile<T> tile(functions, args, std::min(max_rows, chunk_end - chunk_begin));
    for (int64_t begin = chunk_begin; begin < chunk_end; begin += max_rows) {
      const int64_t end = std::min(begin + max_rows, chunk_end);
      tile.load(begin, end);
      body(tile, begin, end);
    }
  });
}

template <typename T>
T weight_of(const CrossEntropyArgs<T>& args, int64_t c) {
  return args.class_weight != nullptr ? args.class_weight[c] : T(1);
}
// The weight of the row's target class; 0 if the row is ignored.
template <typename T>
T row_weight(const CrossEntropyArgs<T>& args, int64_t row) {
  const int32_t target = args.target[row];
  return target == args.ignore_index ? T(0) : weight_of(args, target);
}

// The divisor of the sum over the rows.
template <typename T>
T divisor(const RowFunctions<T>& functions, const CrossEntropyArgs<T>& args) {
  if (args.reduction != LossReduction::kMean) return T(1);
  const int64_t rows = args.batch * args.spatial;
  if (args.class_weight == nullptr) {
    return static_cast<T>(rows - std::count(args.target, args.target + rows, args.ignore_index));
  }
  return static_cast<T>(sum_terms<T>(rows, *args.accumulator, functions.block_sum,
                                     [&](int64_t begin, int64_t n, T* buffer) {
                                       for (int64_t i = 0; i < n; ++i)
                                         buffer[i] = row_weight(args, begin + i);
                                     }));
}

// How much of the loss belongs to the target and how much is spread over the classes.
template <typename T>
struct Smoothing {
  T hit, spread;  // 1 - label_smoothing, label_smoothing / C
  bool any;
};
template <typename T>
Smoothing<T> smoothing_of(const CrossEntropyArgs<T>& args) {
  return {static_cast<T>(1 - args.label_smoothing),
          static_cast<T>(args.label_smoothing / static_cast<double>(args.classes)),
          args.label_smoothing > 0};
}

}  // namespace

template <typename T>
void cross_entropy_with(const RowFunctions<T>& functions, const CrossEntropyArgs<T>& args) {
  const int64_t rows = args.batch * args.spatial, classes = args.classes;
  const Smoothing<T> smoothing = smoothing_of(args);
  const PartRound<T> round(args.log_probabilities);
  std::vector<T> own(static_cast<size_t>(args.reduction == LossReduction::kNone ? 0 : rows));
  T* row_loss = args.reduction == LossReduction::kNone ? args.out : own.data();
  for_tiles(functions, args, [&](Tile<T>& tile, int64_t begin, int64_t end) {
    tile.take_logs(end - begin);
    for (int64_t row = begin; row < end; ++row) {
      const int32_t target = args.target[row];
      if (target == args.ignore_index) {
        row_loss[row] = 0;
        continue;
      }
      const T log_sum = tile.sum(row - begin);
      const T* shifted = tile.shifted(row - begin);
      T loss = weight_of(args, target) * round(log_sum - shifted[target]);
      if (smoothing.any) {
        T* terms = tile.exponentials(row - begin);
        for (int64_t c = 0; c < classes; ++c) {
          terms[c] = weight_of(args, c) * round(log_sum - shifted[c]);
        }
        const T smooth =
            static_cast<T>(sum_array<T>(terms, classes, *args.accumulator, functions.block_sum));
        loss = smoothing.hit * loss + smoothing.spread * smooth;
      }
      row_loss[row] = canonical_nan(loss);
    }
  });
  if (args.reduction == LossReduction::kNone) return;
  const T sum =
      static_cast<T>(sum_array<T>(row_loss, rows, *args.accumulator, functions.block_sum));
  *args.out = canonical_nan(sum / divisor(functions, args));
}

// dx of one row from its log-probabilities; `factor` is dloss / divisor.
template <typename T>
void write_rounded_gradient(const RowFunctions<T>& functions, const CrossEntropyArgs<T>& args,
                            const Smoothing<T>& smoothing, const PartRound<T>& round,
                            int32_t target, T factor, const T* shifted, T log_sum, T* out) {
  const int64_t classes = args.classes;
  const auto gradient = [&](int64_t c) {  // of log p[c]
    const T hit = c == target ? round(-(smoothing.hit * weight_of(args, c)) * factor) : T(0);
    if (!smoothing.any) return hit;
    return round(hit + round(-(smoothing.spread * weight_of(args, c)) * factor));
  };
  T sum = gradient(target);
  if (smoothing.any) {
    sum = static_cast<T>(sum_terms<T>(classes, *args.accumulator, functions.block_sum,
                                      [&](int64_t begin, int64_t n, T* buffer) {
                                        for (int64_t i = 0; i < n; ++i) {
                                          buffer[i] = gradient(begin + i);
                                        }
                                      }));
  }
  for (int64_t c = 0; c < classes; ++c) out[c] = round(shifted[c] - log_sum);
  functions.exp(out, out, classes);
  for (int64_t c = 0; c < classes; ++c) out[c] = canonical_nan(gradient(c) - out[c] * sum);
}

template <typename T>
void cross_entropy_backward_with(const RowFunctions<T>& functions,
                                 const CrossEntropyArgs<T>& args) {
  const int64_t classes = args.classes;
  const Smoothing<T> smoothing = smoothing_of(args);
  const bool is_scalar = args.reduction != LossReduction::kNone;
  const T shared = is_scalar ? *args.dloss / divisor(functions, args) : T(0);
  const PartRound<T> round(args.log_probabilities);
  T spread_weight = 0;  // label_smoothing / C sum w
  if (smoothing.any) {
    spread_weight = smoothing.spread *
                    static_cast<T>(sum_terms<T>(classes, *args.accumulator, functions.block_sum,
                                                [&](int64_t begin, int64_t n, T* buffer) {
                                                  for (int64_t i = 0; i < n; ++i) {
                                                    buffer[i] = weight_of(args, begin + i);
                                                  }
                                                }));
  }
  for_tiles(functions, args, [&](Tile<T>& tile, int64_t begin, int64_t end) {
    if (args.log_probabilities != nullptr) tile.take_logs(end - begin);
    for (int64_t row = begin; row < end; ++row) {
      T* out = tile.exponentials(row - begin);
      const int32_t target = args.target[row];
      if (target == args.ignore_index) {
        std::fill(out, out + classes, T(0));
        continue;
      }
      const T sum = tile.sum(row - begin), factor = is_scalar ? shared : args.dloss[row];
      if (args.log_probabilities != nullptr) {
        write_rounded_gradient(functions, args, smoothing, round, target, factor,
                               tile.shifted(row - begin), sum, out);
        continue;
      }
      const T hit = smoothing.hit * weight_of(args, target);
      const T k = smoothing.any ? hit + spread_weight : hit;
      for (int64_t c = 0; c < classes; ++c) out[c] = out[c] / sum * k;
      if (smoothing.any) {
        for (int64_t c = 0; c < classes; ++c) out[c] -= smoothing.spread * weight_of(args, c);
      }
      out[target] -= hit;
      for (int64_t c = 0; c < classes; ++c) out[c] = canonical_nan(out[c] * factor);
    }
    tile.store(begin, end, args.out);
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                                         \
  template void cross_entropy_with(const RowFunctions<T>&, const CrossEntropyArgs<T>&); \
  template void cross_entropy_backward_with(const RowFunctions<T>&, const CrossEntropyArgs<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

// Plain loops over the definition, block by block.
#include "emulation/scalar/quantize.h"

#include <algorithm>
#include <stdexcept>

#include "emulation/block_pass.h"
#include "emulation/scalar/element_rounder.h"

namespace lockstep {
namespace {

template <typename T>
const Format& container_format() {
  return find_format(std::is_same_v<T, float> ? "fp32" : "fp64");
}

// A float container cannot hold fp64's values.
template <typename T>
void check_container(const QuantizeSpec& spec) {
  static const Format& container = container_format<T>();
  if (spec.measure_only || contains(container, *spec.format)) return;
  throw std::logic_error("quantize: a container of " + container.name + " does not hold " +
                         spec.format->name);
}

}  // namespace

template <typename T>
void scalar_quantize(const T* before, T* after, int64_t count, const QuantizeSpec& spec,
                     TensorStats* stats) {
  check_container<T>(spec);
  const ElementRounder<T> rounder(spec);
  if (stats == nullptr) {
    if (spec.measure_only) return;
    parallel_for((count + kChunk - 1) / kChunk, [&](int64_t chunk) {
      const int64_t begin = chunk * kChunk, end = std::min(count, begin + kChunk);
      with_rounding(spec.rounding, [&]<Rounding kMode>() {
        const ElementRounder<T> round = rounder;  // its own, so that no store can change it
        for (int64_t i = begin; i < end; ++i) {
          after[i] = round.template round<kMode>(before[i], static_cast<uint64_t>(i));
        }
      });
    });
    return;
  }
  const StatsLimits limits(*spec.format);
  *stats = TensorStats();
  const auto totals = for_each_chunk<kQuantizeSums>(
      count, stats,
      [&](int64_t begin, int64_t end, TensorStats& part, BlockSums<kQuantizeSums>* sums) {
        for (int64_t block = begin; block < end; block += kReductionBlock, ++sums) {
          VirtualLanes squares, errors;
          const int64_t block_end = std::min(end, block + kReductionBlock);
          for (int64_t i = block; i < block_end; ++i) {
            const auto index = static_cast<uint64_t>(i);
            const T x = before[i];
            const T y = rounder(x, index);
            const int64_t lane = i % kReductionLanes;
            measure_element(x, y, index, limits, part, squares.lane[lane], errors.lane[lane]);
            if (!spec.measure_only) after[i] = y;
          }
          sums->sum[kSquares] = squares.join();
          sums->sum[kRoundErrors] = errors.join();
        }
      });
  stats->sum_sq = totals.sum[kSquares];
  stats->round_err_sq = totals.sum[kRoundErrors];
}

template <typename T, typename R>
void scalar_compare(const T* lane, const R* reference, int64_t count, double scale,
                    const Format& lane_format, ErrorStats* error) {
  *error = ErrorStats();
  const auto totals = for_each_chunk<kCompareSums>(
      count, error,
      [&](int64_t begin, int64_t end, ErrorStats& part, BlockSums<kCompareSums>* sums) {
        for (int64_t block = begin; block < end; block += kReductionBlock, ++sums) {
          VirtualLanes lanes[kCompareSums];
          const int64_t block_end = std::min(end, block + kReductionBlock);
          for (int64_t i = block; i < block_end; ++i) {
            const double x = lane[i], r = reference[i];
            if (!std::isfinite(x) || !std::isfinite(r)) continue;
            const ComparedTerms terms = compare_element(x, r, scale, lane_format);
            const int64_t l = i % kReductionLanes;
            ++part.compared;
            lanes[kErrors].lane[l] += terms.err_sq;
            lanes[kDots].lane[l] += terms.dot_ref;
            lanes[kReferences].lane[l] += terms.ref_sq;
            part.err_max_ulps = std::max(part.err_max_ulps, terms.ulps);
          }
          for (int s = 0; s < kCompareSums; ++s) sums->sum[s] = lanes[s].join();
        }
      });
  error->err_sq = totals.sum[kErrors];
  error->dot_ref = totals.sum[kDots];
  error->ref_sq = totals.sum[kReferences];
}

template void scalar_quantize(const float*, float*, int64_t, const QuantizeSpec&, TensorStats*);
template void scalar_quantize(const double*, double*, int64_t, const QuantizeSpec&, TensorStats*);
template void scalar_compare(const float*, const float*, int64_t, double, const Format&,
                             ErrorStats*);
template void scalar_compare(const double*, const float*, int64_t, double, const Format&,
                             ErrorStats*);
template void scalar_compare(const float*, const double*, int64_t, double, const Format&,
                             ErrorStats*);
template void scalar_compare(const double*, const double*, int64_t, double, const Format&,
                             ErrorStats*);

}  // namespace lockstep

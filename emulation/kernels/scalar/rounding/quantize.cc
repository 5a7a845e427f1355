// Plain loops of the definition, block by block.
#include "emulation/kernels/scalar/rounding/quantize.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/compare_stats.h"
#include "emulation/kernels/scalar/rounding/element_rounder.h"

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

// The sums of one block of floats.
class FloatSums {
 public:
  FloatSums(const float* values, int64_t count, const StatsLimits& limits) {
    MagnitudeRange range;
    for (int64_t i = 0; i < count; ++i) range.add(values[i]);
    lanes_.assign(kReductionLanes, LaneSums(range, count, limits));
  }
  // `i`: place in the block; in ascending order.
  void add(int64_t i, float x, float y) {
    lanes_[static_cast<size_t>(i % kReductionLanes)].add(i, x, y);
  }
  void store(VirtualLanes& squares, VirtualLanes& errors) const {
    for (size_t l = 0; l < lanes_.size(); ++l) {
      squares.lane[l] = lanes_[l].squares(), errors.lane[l] = lanes_[l].errors();
    }
  }

 private:
  std::vector<LaneSums> lanes_;
};

// How the sums of a block of pairs are formed.
template <typename T>
CompareRule block_rule(const T* lane, const float* reference, int64_t count, double scale) {
  if constexpr (std::is_same_v<T, float>) {
    if (!may_group_pairs(scale)) return {false};
    MagnitudeRange of_lane, of_reference;
    for (int64_t i = 0; i < count; ++i) of_lane.add(lane[i]), of_reference.add(reference[i]);
    return find_compare_rule(of_lane.largest, of_reference.largest, scale);
  }
  return {false};
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
        const ElementRounder<T> round = rounder;  // a local copy, so that no store can change it
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
          [[maybe_unused]] std::optional<FloatSums> float_sums;
          if constexpr (std::is_same_v<T, float>) {
            float_sums.emplace(before + block, block_end - block, limits);
          }
          for (int64_t i = block; i < block_end; ++i) {
            const auto index = static_cast<uint64_t>(i);
            const T x = before[i];
            const T y = rounder(x, index);
            if constexpr (std::is_same_v<T, float>) {
              count_element(x, y, index, limits, part);
              float_sums->add(i - block, x, y);
            } else {
              const int64_t lane = i % kReductionLanes;
              measure_element(x, y, index, limits, part, squares.lane[lane], errors.lane[lane]);
            }
            if (!spec.measure_only) after[i] = y;
          }
          if constexpr (std::is_same_v<T, float>) float_sums->store(squares, errors);
          sums->sum[kSquares] = squares.join();
          sums->sum[kRoundErrors] = errors.join();
        }
      });
  stats->sum_sq = totals.sum[kSquares];
  stats->round_err_sq = totals.sum[kRoundErrors];
}

template <typename T>
void scalar_compare(const T* lane, const float* reference, int64_t count, double scale,
                    const Format& lane_format, ErrorStats* error) {
  *error = ErrorStats();
  const auto totals = for_each_chunk<kCompareSums>(
      count, error,
      [&](int64_t begin, int64_t end, ErrorStats& part, BlockSums<kCompareSums>* sums) {
        for (int64_t block = begin; block < end; block += kReductionBlock, ++sums) {
          VirtualLanes lanes[kCompareSums];
          const int64_t block_end = std::min(end, block + kReductionBlock);
          const CompareRule rule =
              block_rule(lane + block, reference + block, block_end - block, scale);
          std::vector<CompareLane> sums_of(kReductionLanes, CompareLane(rule, block_end - block));
          for (int64_t i = block; i < block_end; ++i) {
            const double x = lane[i], r = reference[i];
            if (!std::isfinite(x) || !std::isfinite(r)) continue;
            const ComparedTerms terms = compare_element(x, r, scale, lane_format);
            ++part.compared;
            part.err_max_ulps = std::max(part.err_max_ulps, terms.ulps);
            sums_of[static_cast<size_t>(i % kReductionLanes)].add(i - block, lane[i], reference[i],
                                                                  terms);
          }
          for (int64_t l = 0; l < kReductionLanes; ++l) {
            for (int s = 0; s < kCompareSums; ++s) {
              lanes[s].lane[l] = sums_of[static_cast<size_t>(l)].sum(static_cast<CompareSum>(s));
            }
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

}  // namespace lockstep

// Bounds on how far noise alone moves the mean loss at the end of a run.
// Every bound is measured in the same run, at kErrorRate; analysis/run/outcome.h judges with them.
// t(k): Student's quantile for k degrees of freedom at 1 - kErrorRate.
//
//   batch_noise   how far two tail means lie apart by their batches alone:
//                 t(n - 1) sqrt((s^2 + s_ref^2) / n) over the n steps of the tail, s^2 = mean of
//                 (x[i+1] - x[i])^2 / 2, which a slope hardly moves (von Neumann 1941); or, if that
//                 is larger, t(k) times the root mean square of the k changes from one stretch of
//                 the tail's length to the next, in the second half of the reference's run: single
//                 batches with a large loss may dominate a tail, and progress within such a stretch
//                 is no regression. With k < kFewestChanges t(k) is too large to be of use (t(1) =
//                 31.8), and the first formula stands alone.
//   chaos         how far one ulp takes the loss: the root mean square of the gaps between the
//                 reference and its twins. A single gap may be small by luck, so every stretch of
//                 the tail's length in the second half of the run counts, k gaps in all.
//   chaos_bound   t(k) chaos: a lane lies as far from the reference by one ulp alone; infinite
//                 without twins
//   learning_noise   the bound of the first loss against the mean of the tail,
//                 t(n - 1) s sqrt(1 + 1/n); infinite for n < kFewestTail
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

inline constexpr double kErrorRate = 0.01;   // of calling a lane worse that is not
inline constexpr int64_t kTailDivisor = 10;  // the tail: this part of the run's steps,
inline constexpr int64_t kTailSteps = 10;    // but at least this many, in the run's second half
inline constexpr size_t kFewestTail = 3;     // steps in a tail, from which a lane can be judged
inline constexpr size_t kFewestChanges = 3;  // from which changes of stretches are a bound

// Standard deviation from one step to the next, s above. Requires: two steps.
double step_scatter(std::span<const double> loss);
double t_quantile(int64_t degrees);  // Student's, at 1 - kErrorRate
double normal_quantile();            // t(infinity)

// The last max(kTailSteps, size / kTailDivisor) values, but never more than the second half of the
// run: the fall before is no noise.
std::span<const double> tail_of(std::span<const double> loss);
double tail_mean(std::span<const double> loss);  // NaN for none
// Over the same steps, and of a short run over all: baselines of checks hold it.
double end_mean(std::span<const double> loss);

// See above; 0 for fewer than two steps.
double batch_noise(std::span<const double> lane, std::span<const double> reference);
double learning_noise(std::span<const double> loss);

// The gaps of a twin, from the end backwards. Requires: of one length.
std::vector<double> chaos_gaps(std::span<const double> reference, std::span<const double> twin);
// Root mean square of the gaps; 0 for none.
double chaos_of(std::span<const double> gaps);
// t(k) chaos of k gaps; infinite for none.
double chaos_bound(std::span<const double> gaps);

}  // namespace lockstep

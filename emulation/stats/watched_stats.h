// How far a value that the user watches (log-probabilities, the output of a layer) is from the
// reference's, element by element, in its own unit. The run file stores them in watched/.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep {

struct WatchedStats {
  uint64_t count = 0;      // elements
  uint64_t compared = 0;   // finite in the lane and in the reference: the sums are over these
  uint64_t nonfinite = 0;  // finite in the reference alone
  double reference_sum = 0, error_sum = 0, error_max = 0;  // of |reference|, |lane - reference|
  // Of log-probabilities, else NaN: the sum of r - 1 - log r, with r = exp(lane - reference). Its
  // mean estimates the KL divergence of the lane from the reference. Source: J. Schulman,
  // "Approximating KL divergence" (2020), k3.
  double kl_sum = std::numeric_limits<double>::quiet_NaN();

  void merge(const WatchedStats& other) {
    count += other.count;
    compared += other.compared;
    nonfinite += other.nonfinite;
    reference_sum += other.reference_sum;
    error_sum += other.error_sum;
    error_max = std::max(error_max, other.error_max);
    if (std::isnan(kl_sum)) {
      kl_sum = other.kl_sum;
    } else if (!std::isnan(other.kl_sum)) {
      kl_sum += other.kl_sum;
    }
  }

  // NaN: nothing was compared.
  double mean_error() const { return over_compared(error_sum); }
  double mean_reference() const { return over_compared(reference_sum); }
  double largest_error() const { return compared > 0 ? error_max : kNone; }
  double relative_error() const { return reference_sum > 0 ? error_sum / reference_sum : kNone; }
  double mean_kl() const { return over_compared(kl_sum); }
  // Of log-probabilities, else NaN: the largest factor between two probabilities, either way.
  double largest_ratio() const { return std::isnan(kl_sum) ? kNone : std::exp(largest_error()); }

 private:
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double over_compared(double sum) const {
    return compared > 0 ? sum / static_cast<double>(compared) : kNone;
  }
};

}  // namespace lockstep

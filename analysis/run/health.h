// What a lane's rounding did to each layer over the whole run.
// Adds up the counts of every step by site, then picks the worst site of every layer and role.
// Rates are shares in 0..1:
//
//   to_zero_rate       values that became zero / values that were not zero
//   to_subnormal_rate, saturated_rate   of the values that were not zero
//   nonfinite_rate     (overflowed to infinity + NaN) / all values
//   infinite_in_rate   steps in which an infinity came in (formed inside the op, before its result
//                      was rounded, or passed on) / steps measured
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/run/nonfinite_counts.h"
#include "src/graph/site.h"

namespace lockstep {

struct SiteHealth {
  int64_t steps = 0;           // in which the site was measured or counted
  int64_t measured_steps = 0;  // of them, measured
  uint64_t count = 0, nonzero = 0;
  uint64_t to_zero = 0, to_subnormal = 0, to_infinity = 0, saturated = 0, nan = 0;
  int64_t worst_step =
      -1;  // where the share lost (to zero, infinity, NaN or saturated) was largest
  double worst_step_rate = 0;
  int64_t first_nonfinite_step = -1;
  int64_t infinite_in_steps = 0;  // in which a value was infinite before rounding

  double to_zero_rate() const { return rate(to_zero, nonzero); }
  double to_subnormal_rate() const { return rate(to_subnormal, nonzero); }
  double saturated_rate() const { return rate(saturated, nonzero); }
  double nonfinite_rate() const { return rate(to_infinity + nan, count); }
  double infinite_in_rate() const {
    return rate(static_cast<uint64_t>(infinite_in_steps), static_cast<uint64_t>(measured_steps));
  }
  // Nothing was lost: every nonzero value arrived as a normal or subnormal number.
  bool clean() const {
    return to_zero + to_infinity + saturated + nan == 0 && infinite_in_steps == 0;
  }

  static double rate(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// How many weight updates were rounded away: round(w + dw) == w although dw != 0.
struct Stagnation {
  std::string layer;
  uint64_t stagnant = 0, count = 0;
  double rate() const { return SiteHealth::rate(stagnant, count); }
};
// Adds one step's updates (by site id) to the layers' sums.
void add_updates(const SiteTable& sites, std::span<const SiteRecord> step,
                 std::vector<Stagnation>& layers);

class HealthTally {
 public:
  explicit HealthTally(size_t sites) : sites_(sites) {}
  // Requires: steps in ascending order; both by site id. `is_measured`: as StepRecord.
  // `nonfinite`: without what is intended.
  void add(int64_t step, bool is_measured, std::span<const SiteRecord> sites,
           std::span<const NonfiniteCounts> nonfinite);
  const std::vector<SiteHealth>& sites() const { return sites_; }

 private:
  std::vector<SiteHealth> sites_;
};

// One line of a report: the worst site of a layer and role. Accumulator sites are separate from
// the values around them.
struct LayerHealth {
  std::string layer;
  Role role;
  int32_t site = -1;  // the worst site, which has these numbers
  SiteHealth worst;
  int measured_sites = 0;  // of this layer and role, clean ones included
  int unclean_sites = 0;
};

// In execution order of the layers' first sites. Worst: most non-finite values, then most steps
// with infinities coming in, then the largest to_zero_rate, saturated_rate, to_subnormal_rate.
std::vector<LayerHealth> layer_health(const SiteTable& sites,
                                      const std::vector<SiteHealth>& health);

}  // namespace lockstep

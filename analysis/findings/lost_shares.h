// What did a lane lose without ever overflowing?
// Shares of energy (sums of squares) that rounding took, averaged over the steps:
//
//   underflow      sum (after - before)^2 / sum before^2 where values became zero. Rounding normal
//                  numbers loses at most u^2 of the energy, u the unit roundoff: less than
//                  kRoundingTimes u^2 is not underflow.
//   storage        underflow where a weight, input, buffer or constant is stored, in steps in which
//                  the result of an op that reads it is wrong by kEnergyLimit: a lost eps next to
//                  large numbers does no harm
//   sums           the same for an accumulator, from the error that the first step adds to that of
//                  the operands: there both lanes have the same weights
//   lost updates   sum dw^2 over updates that moved no weight / sum dw^2, for each parameter. Kahan
//                  summation and stochastic rounding lose no update in the long run.
//   state          sum (after - before)^2 / sum before^2 where values became zero; of a state whose
//                  root divides the update also nonzero elements that became zero / nonzero
//                  elements: however small, each of them decides the size of its own update
//   swamping       sum (computed - exact)^2 / sum exact^2 of the sampled sums of products
//   plain sums     sum (after - before)^2 of a + b / the smaller of sum a^2 and sum b^2
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/findings/step_evidence.h"
#include "analysis/run/energy.h"
#include "src/graph/site.h"
#include "src/policy/policy.h"
#include "src/update/optimizers.h"

namespace lockstep {

// The limits are judgements: a tenth of the updates, of the state or of the terms.
inline constexpr double kRoundingTimes = 2;
inline constexpr double kLostUpdateLimit = 0.1;  // of a parameter's update energy
inline constexpr double kStateLimit = 0.1;       // of the state's nonzero elements
// Of the addends of a sum of products, and kEnergyLimit of the sum; of a plain sum's smaller
// operand.
inline constexpr double kSwampedLimit = 0.1;

class LostShares {
 public:
  // All must outlive the object. `formats` and `states` by site id, may be empty.
  LostShares(int lane, const SiteTable& sites, const std::vector<std::string>& formats,
             std::vector<OptimizerState> states);

  // Steps in which the lane's loss was finite or that were skipped.
  void add(int64_t step, bool skipped, const StepEvidence& lane, const StepEvidence& reference,
           const std::vector<UpdateRecord>& updates, const std::vector<UpdateRecord>& of_reference);

  std::vector<Finding> findings(const Policy& policy, const std::vector<AccumulatorHealth>& sums,
                                const std::vector<AccumulatorHealth>& of_reference) const;

 private:
  struct SiteShares {
    int64_t steps = 0, zero_steps = 0;    // measured; altogether zero although the reference is not
    int64_t first = -1, last = -1;        // steps with a loss
    double underflow = 0, saturated = 0;  // sums of shares over steps
    uint64_t to_zero = 0, nonzero = 0, ref_zero = 0, ref_count = 0;
    double sum_sq = 0, round_err_sq = 0;  // over the steps
    double stagnant_sq = 0, update_sq = 0, ref_stagnant_sq = 0, ref_update_sq = 0;
    double ref_largest = 0, largest = 0;
    double scale = 1;

    double mean(double sum) const { return steps == 0 ? 0 : sum / static_cast<double>(steps); }
  };
  Finding at(FindingKind kind, const Site& site, double share) const;
  bool is_noise(const Site& site) const;
  bool matters(const Site& stored, const StepEvidence& lane) const;
  double added_error(const Site& site, const StepEvidence& lane) const;
  bool is_gone(const Site& site) const;
  int32_t flat_operand(const Site& site) const;
  void add_no_gradient(std::vector<Finding>& out) const;
  void add_underflow(bool backward, std::vector<Finding>& out) const;
  void add_worst(FindingKind kind, double limit, double (*share_of)(const SiteShares&),
                 bool (*belongs)(const Site&), std::vector<Finding>& out) const;
  void add_swamping(const std::vector<AccumulatorHealth>& sums,
                    const std::vector<AccumulatorHealth>& of_reference,
                    std::vector<Finding>& out) const;

  double energy_of(const Site& operand) const;
  bool is_masked(const Site& sum, const Site& operand) const;
  void add_lost_operands(std::vector<Finding>& out) const;
  void add_lost_state(std::vector<Finding>& out) const;

  int lane_;
  const SiteTable& sites_;
  const std::vector<std::string>& formats_;
  std::vector<OptimizerState> states_;
  std::vector<double> rounding_;              // by site id: what rounding alone may take
  std::vector<std::vector<size_t>> results_;  // by storage site: forward outputs made from it
  std::vector<SiteShares> shares_;            // by site id
};

}  // namespace lockstep

// See proof.h.
#include "analysis/search/proof.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "analysis/run/loss_noise.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace

double Proof::most_breaking() const {
  return 1 - std::pow(kProofErrorRate, 1 / static_cast<double>(seeds()));
}

Proof judge_pairs(const std::vector<ProofPair>& pairs, double share) {
  Proof proof;
  proof.share = share;
  std::vector<double> falls, losses;
  double squares = 0;
  for (const ProofPair& pair : pairs) {
    proof.differences.push_back(pair.difference);
    falls.push_back(pair.fall);
    losses.push_back(pair.reference_loss);
    squares += pair.chaos * pair.chaos;
  }
  proof.fall = mean_of(falls);
  proof.chaos = std::sqrt(squares / static_cast<double>(pairs.size()));
  proof.tolerance = std::max(share * proof.fall, proof.chaos);
  proof.mean = mean_of(proof.differences);
  if (!std::isfinite(proof.mean)) {
    proof.result = Proof::Result::kFail;
    return proof;
  }
  proof.seed_scatter = deviation_of(losses);
  const auto n = static_cast<double>(pairs.size());
  const boost::math::students_t t(n - 1);
  const double rate = kProofErrorRate / kProofStages.size();
  proof.gap_scatter = deviation_of(proof.differences);
  proof.half_width =
      boost::math::quantile(boost::math::complement(t, rate)) * proof.gap_scatter / std::sqrt(n);
  if (proof.mean + proof.half_width < proof.tolerance) proof.result = Proof::Result::kPass;
  if (proof.mean - proof.half_width > proof.tolerance) proof.result = Proof::Result::kFail;
  return proof;
}

std::vector<int64_t> steps_for_search(int64_t captured) {
  std::vector<int64_t> steps(static_cast<size_t>(captured / 2));
  std::iota(steps.begin(), steps.end(), 0);
  return steps;
}

std::vector<int64_t> steps_for_proof(int64_t captured, uint64_t seed) {
  std::vector<int64_t> steps(static_cast<size_t>(captured - captured / 2));
  std::iota(steps.begin(), steps.end(), captured / 2);
  RandomStream(seed, RandomPurpose::kShuffle).shuffle(steps);
  return steps;
}

Proof prove(TrialRuns& runs, const Candidate& candidate, double share, int64_t captured) {
  std::vector<ProofPair> pairs;
  std::set<std::vector<int64_t>> orders;  // no order twice
  uint64_t number = 0;
  for (const int64_t stage : kProofStages) {
    while (static_cast<int64_t>(pairs.size()) < stage) {
      RunOptions options = runs.options();
      do {
        options.seed = runs.options().seed + kProofSeedsAfter + number++;
        if (captured > 0) options.captured_order = steps_for_proof(captured, options.seed);
      } while (captured > 0 && !orders.insert(options.captured_order).second);
      const SeedCourses seed = runs.course(candidate, options);
      const LaneJudgement judged = judge_lanes(std::span(&seed, 1)).at(1);
      const std::vector<double>& reference = seed.lanes.front().loss;
      if (!std::isfinite(tail_mean(reference))) {
        Proof none = pairs.size() < 2 ? Proof() : judge_pairs(pairs, share);
        none.result = Proof::Result::kInconclusive;
        none.reference_broke = true;
        return none;
      }
      const bool broke = judged.verdict == Verdict::kBroke || judged.verdict == Verdict::kStalled;
      pairs.push_back({.difference = broke ? std::numeric_limits<double>::quiet_NaN() : judged.gap,
                       .fall = reference.front() - tail_mean(reference),
                       .chaos = judged.chaos,
                       .reference_loss = tail_mean(reference)});
      if (broke) return judge_pairs(pairs, share);
    }
    const Proof proof = judge_pairs(pairs, share);
    if (proof.result != Proof::Result::kInconclusive) return proof;
  }
  return judge_pairs(pairs, share);
}

}  // namespace lockstep

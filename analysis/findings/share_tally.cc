// See share_tally.h.
#include "analysis/findings/share_tally.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/findings/nonfinite.h"
#include "analysis/run/energy.h"
#include "analysis/run/noise_gradient.h"
#include "emulation/format/format.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

bool is_state(const Site& site) {
  return site.role == Role::kOptimizerState;
}

}  // namespace

double share_of(double part, double whole) {
  return whole > 0 && std::isfinite(part) && std::isfinite(whole) ? part / whole : 0;
}
bool is_gradient(const Site& site) {
  return is_in_graph(site) && is_backward(site);
}

double SiteShares::lost_additions() const {
  const double lost = share_of(stagnant_sq, update_sq);
  return lost > 2 * share_of(ref_stagnant_sq, ref_update_sq) ? lost : 0;
}

double SiteShares::lost_tail() const {
  const double least = std::max(static_cast<double>(kLeastAddedSteps),
                                kLeastTail * static_cast<double>(added_steps));
  return static_cast<double>(tail_steps) < least ? 0 : share_of(tail_stagnant_sq, tail_update_sq);
}

void SiteShares::add_update(int64_t step, double lost_sq, double all_sq, double lost_by_reference) {
  stagnant_sq += lost_sq;
  update_sq += all_sq;
  const double lost = share_of(lost_sq, all_sq);
  if (lost < kVanishedUpdates || 2 * lost_by_reference >= lost) {
    tail_steps = 0;
    return;
  }
  if (tail_steps == 0) {
    tail_first = step;
    tail_stagnant_sq = tail_update_sq = 0;
  }
  tail_steps += 1;
  tail_stagnant_sq += lost_sq;
  tail_update_sq += all_sq;
}

double SiteShares::left_behind() const {
  if (added_steps < kLeastAddedSteps) return 0;
  const double all = additions * static_cast<double>(last_add_step - first_add_step + 1) /
                     static_cast<double>(added_steps);
  return share_of(error_sq, all * all * ref_update_sq / additions);
}

int64_t SiteShares::outlier_step() const {
  const bool is_outlier = ref_second > 0 && ref_largest >= kOutlierTimes * ref_second;
  const bool lowers = scale_of_first * kOutlierTimes <= scale_of_largest;
  return is_outlier && lowers && first > largest_step ? largest_step : -1;
}

ShareTally::ShareTally(int lane, const SiteTable& sites, const std::vector<std::string>& formats)
    : lane_(lane),
      sites_(sites),
      formats_(formats),
      rounding_(sites.sites.size()),
      results_(sites.sites.size()),
      shares_(sites.sites.size()) {
  for (size_t i = 0; i < formats.size(); ++i) {
    if (formats[i].empty()) continue;
    const double u = find_format(formats[i]).unit_roundoff();
    rounding_[i] = kRoundingTimes * u * u;
  }
  for (const Site& site : sites.sites) {
    if (site.point != Point::kOutput || is_backward(site)) continue;
    for (const int32_t operand : site.feeds) {
      for (const int32_t from : sites.sites[static_cast<size_t>(operand)].feeds) {
        const auto f = static_cast<size_t>(from);
        if (is_storage(sites.sites[f])) results_[f].push_back(static_cast<size_t>(site.id));
      }
    }
  }
}

// Without a measured result, every loss matters.
bool ShareTally::matters(const Site& stored, const StepEvidence& lane) const {
  const auto is_wrong = [&](size_t i) {
    return lane.nonfinite(i) ||
           share_of(lane[i].error.err_sq, lane[i].error.ref_sq) >= kEnergyLimit;
  };
  const auto& results = results_[static_cast<size_t>(stored.id)];
  const auto is_measured = [&](size_t i) { return lane[i].stats.count > 0; };
  return std::ranges::any_of(results, is_wrong) || std::ranges::none_of(results, is_measured);
}

// The error share of a sum beyond that of what it is made from.
double ShareTally::added_error(const Site& site, const StepEvidence& lane) const {
  double inherited = 0;
  for (const int32_t feed : site.feeds) {
    const auto f = static_cast<size_t>(feed);
    inherited = std::max(inherited, share_of(lane[f].error.err_sq, lane[f].error.ref_sq));
  }
  const auto i = static_cast<size_t>(site.id);
  return std::max(0.0, share_of(lane[i].error.err_sq, lane[i].error.ref_sq) - inherited);
}

// An operand that is read as it was written: the site that rounded it.
int32_t ShareTally::rounded_at(int32_t operand, const std::vector<double>& lost) const {
  int32_t at = operand;
  for (;;) {
    const Site& site = sites_.sites[static_cast<size_t>(at)];
    const bool copies = site.point == Point::kOperand && site.feeds.size() == 1;
    if (lost[static_cast<size_t>(at)] > 0 || !copies) return at;
    at = site.feeds.front();
  }
}

// Where underflow is most of what is wrong with a gradient, the weight gradient made from it can be
// wrong by much more: what became zero may have met the largest activations. The error that other
// operands bring is not underflow's; nor can it be separated from that of sums in a low precision.
void ShareTally::follow_to_weights(const Site& gradient, const std::vector<double>& lost,
                                   const StepEvidence& lane) {
  if (gradient.role != Role::kGradWeight || gradient.point != Point::kOutput) return;
  if (!is_in_graph(gradient)) return;
  const auto error_of = [&](int32_t site) {
    const auto i = static_cast<size_t>(site);
    return share_of(lane[i].error.err_sq, lane[i].error.ref_sq);
  };
  double brought = 0;
  for (const int32_t feed : gradient.feeds) {
    const Site& operand = sites_.sites[static_cast<size_t>(feed)];
    const bool sums = operand.point == Point::kAccumulator;
    if (sums && lane[static_cast<size_t>(feed)].stats.count > 0) return;
    if (!is_gradient(operand)) brought = std::max(brought, error_of(feed));
  }
  for (const int32_t feed : gradient.feeds) {
    if (!is_gradient(sites_.sites[static_cast<size_t>(feed)])) continue;
    const auto from = static_cast<size_t>(rounded_at(feed, lost));
    SiteShares& s = shares_[from];
    if (s.weight_gradient >= 0 && s.weight_gradient != gradient.id) continue;
    const bool by_underflow = lost[from] > 0 && 2 * lost[from] >= error_of(feed);
    if (!by_underflow) continue;
    s.weight_share += std::max(0.0, error_of(gradient.id) - brought);
    s.weight_gradient = gradient.id;
  }
}

void ShareTally::add(int64_t step, bool skipped, bool same_weights, const StepEvidence& lane,
                     const StepEvidence& reference) {
  noise_.clear();
  std::vector<double> to_zero(shares_.size());  // what underflow took of each site in this step
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Site& site = sites_.sites[i];
    SiteShares& s = shares_[i];
    if (!skipped && lane[i].update.measured) {
      if (lane[i].update.stats.stagnant_sq > 0) {
        if (s.first_addition < 0) s.first_addition = step;
        s.last_addition = step;
      }
      const double scale = lane[i].scale > 0 && std::isfinite(lane[i].scale) ? lane[i].scale : 1;
      const UpdateStats& own = lane[i].update.stats;
      const UpdateStats& of_reference = reference[i].update.stats;
      const bool is_compared = reference[i].update.measured;
      s.add_update(step, own.stagnant_sq / scale / scale, own.update_sq / scale / scale,
                   is_compared ? share_of(of_reference.stagnant_sq, of_reference.update_sq) : 0);
      if (s.first_add_step < 0) s.first_add_step = step;
      s.last_add_step = step;
      s.added_steps += 1;
      s.additions += static_cast<double>(lane[i].update.stats.count) /
                     static_cast<double>(element_count(site.shape));
      if (is_compared) {
        s.ref_stagnant_sq += of_reference.stagnant_sq;
        s.ref_update_sq += of_reference.update_sq;
      }
    }
    if (lane[i].stats.count == 0 || lane.nonfinite(i) || reference.nonfinite(i)) continue;
    if (skipped && is_backward(site)) continue;
    s.steps += 1;
    s.to_zero += lane[i].stats.to_zero;
    s.nonzero += lane[i].stats.count - lane[i].stats.source_zero;
    s.ref_zero += reference[i].stats.source_zero;
    s.ref_count += reference[i].stats.count;
    s.sum_sq += lane[i].stats.sum_sq;
    s.round_err_sq += std::isfinite(lane[i].stats.round_err_sq) ? lane[i].stats.round_err_sq : 0;
    if (reference[i].stats.abs_max > s.ref_largest) {
      s.ref_second = s.ref_largest;
      s.ref_largest = reference[i].stats.abs_max;
      s.largest_step = step;
      s.scale_of_largest = lane[i].scale;
    } else {
      s.ref_second = std::max(s.ref_second, reference[i].stats.abs_max);
    }
    s.largest = std::max(s.largest, lane[i].stats.abs_max);
    s.scale = lane[i].scale;
    const bool vanished = lane.all_zero(i) && reference[i].stats.sum_sq > 0;
    s.zero_steps += vanished;
    // A layer without gradients in FP32 loses nothing.
    double lost = reference[i].stats.sum_sq > 0
                      ? share_of(lane[i].stats.round_err_sq, lane[i].stats.sum_sq)
                      : 0;
    if (lost < rounding_[i]) lost = 0;
    const bool is_sum = site.point == Point::kAccumulator;
    if (is_sum) lost = same_weights ? added_error(site, lane) : 0;
    s.judged_sums += is_sum && same_weights;
    s.judged_weights += same_weights && !skipped;
    s.error_sq = lane[i].error.err_sq;
    s.error_share = share_of(lane[i].error.err_sq, lane[i].error.ref_sq);
    if (is_storage(site) && lost > 0 && !matters(site, lane)) lost = 0;
    if (lane[i].stats.to_zero > 0) s.underflow += to_zero[i] = lost;
    if (same_weights && !skipped) follow_to_weights(site, to_zero, lane);
    if (lane[i].stats.saturated > 0) s.saturated += lost;
    const bool lost_state = is_state(site) && lane[i].stats.to_zero > 0;
    if (vanished || lost_state ||
        (lost > 0 && lane[i].stats.to_zero + lane[i].stats.saturated > 0)) {
      if (s.first < 0) {
        s.first = step;
        s.scale_of_first = lane[i].scale;
      }
      s.last = step;
    }
  }
}

void ShareTally::add_twin(const std::vector<double>& errors) {
  noise_.clear();
  least_of_twin_.resize(errors.size(), std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < errors.size(); ++i) {
    least_of_twin_[i] = std::min(least_of_twin_[i], errors[i]);
  }
}

const std::string& ShareTally::format(int32_t site) const {
  static const std::string kNone;
  return formats_.empty() ? kNone : formats_[static_cast<size_t>(site)];
}

Finding ShareTally::finding(FindingKind kind, const Site& site, double share) const {
  const auto i = static_cast<size_t>(site.id);
  const SiteShares& s = shares_[i];
  const bool adds = kind == FindingKind::kLostUpdates || kind == FindingKind::kSwamping;
  Finding f{.kind = kind,
            .lane = lane_,
            .first_step = std::max<int64_t>(adds ? s.first_addition : s.first, 0),
            .last_step = std::max<int64_t>(adds ? s.last_addition : s.last, 0),
            .steps = s.steps,
            .site = site.id,
            .backward = is_backward(site),
            .share = std::min(share, 1.0)};
  f.scale = std::isfinite(s.scale) ? s.scale : 1;
  f.value = s.largest;
  if (!formats_.empty() && !formats_[i].empty()) {
    f.format = formats_[i];
    f.limit = find_format(f.format).max_finite;
  }
  return f;
}

bool ShareTally::is_noise(const Site& site) const {
  if (noise_.empty()) {
    for (const Site& one : sites_.sites) {  // in execution order: what they read comes first
      const auto is_known = [&](int32_t feed) { return noise_[static_cast<size_t>(feed)]; };
      const auto is_read = [&](int32_t feed) {
        return is_gradient(sites_.sites[static_cast<size_t>(feed)]);
      };
      const bool is_made_of_noise = is_gradient(one) && std::ranges::any_of(one.feeds, is_read) &&
                                    std::ranges::all_of(one.feeds, [&](int32_t feed) {
                                      return !is_read(feed) || is_known(feed);
                                    });
      noise_.push_back(is_made_of_noise || begins_noise(one));
    }
  }
  return noise_[static_cast<size_t>(site.id)];
}

// In the reference.
bool ShareTally::begins_noise(const Site& site) const {
  constexpr double kQuarter = 0.25 * 0.25;  // an error of a quarter of the norm, as energy
  const auto i = static_cast<size_t>(site.id);
  if (is_gradient(site) && i < least_of_twin_.size() && least_of_twin_[i] >= kQuarter) return true;
  double largest = 0;
  const auto take = [&](int32_t id) {
    largest = std::max(largest, shares_[static_cast<size_t>(id)].ref_largest);
  };
  if (is_in_graph(site) && find_op(site.op).meaning.is_sum) {  // of gradients that cancel
    std::ranges::for_each(site.feeds, take);
  } else if (site.role == Role::kGradWeight) {
    for (const Site& other : sites_.sites) {
      if (other.layer == site.layer && is_gradient(other)) take(other.id);
    }
  }
  return shares_[static_cast<size_t>(site.id)].ref_largest < std::ldexp(largest, -kNoiseOctaves);
}

}  // namespace lockstep

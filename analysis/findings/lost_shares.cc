// See lost_shares.h.
#include "analysis/findings/lost_shares.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "analysis/findings/nonfinite.h"
#include "analysis/run/noise_gradient.h"
#include "emulation/format/format.h"

namespace lockstep {
namespace {

bool is_gradient(const Site& site) {
  return is_in_graph(site) && is_backward(site);
}
bool is_state(const Site& site) {
  return site.role == Role::kOptimizerState;
}
bool is_update(const Site& site) {
  return site.role == Role::kUpdate;
}

double ratio(double part, double whole) {
  return whole > 0 && std::isfinite(part) && std::isfinite(whole) ? part / whole : 0;
}

}  // namespace

LostShares::LostShares(int lane, const SiteTable& sites, const std::vector<std::string>& formats)
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
bool LostShares::matters(const Site& stored, const StepEvidence& lane) const {
  const auto is_wrong = [&](size_t i) {
    return lane.nonfinite(i) || ratio(lane.err_sq[i], lane.ref_sq[i]) >= kEnergyLimit;
  };
  const auto& results = results_[static_cast<size_t>(stored.id)];
  const auto is_measured = [&](size_t i) { return lane.count[i] > 0; };
  return std::ranges::any_of(results, is_wrong) || std::ranges::none_of(results, is_measured);
}

// The error share of a sum beyond that of what it is made from.
double LostShares::added_error(const Site& site, const StepEvidence& lane) const {
  double inherited = 0;
  for (const int32_t feed : site.feeds) {
    const auto f = static_cast<size_t>(feed);
    inherited = std::max(inherited, ratio(lane.err_sq[f], lane.ref_sq[f]));
  }
  const auto i = static_cast<size_t>(site.id);
  return std::max(0.0, ratio(lane.err_sq[i], lane.ref_sq[i]) - inherited);
}

void LostShares::add(int64_t step, bool skipped, const StepEvidence& lane,
                     const StepEvidence& reference, const std::vector<UpdateRecord>& updates,
                     const std::vector<UpdateRecord>& of_reference) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Site& site = sites_.sites[i];
    SiteShares& s = shares_[i];
    if (!skipped && updates[i].measured) {
      if (updates[i].stats.stagnant_sq > 0) {
        if (s.first < 0) s.first = step;
        s.last = step;
      }
      s.stagnant_sq += updates[i].stats.stagnant_sq;
      s.update_sq += updates[i].stats.update_sq;
      if (of_reference[i].measured) {
        s.ref_stagnant_sq += of_reference[i].stats.stagnant_sq;
        s.ref_update_sq += of_reference[i].stats.update_sq;
      }
    }
    if (lane.count[i] == 0 || lane.nonfinite(i) || reference.nonfinite(i)) continue;
    if (skipped && is_backward(site)) continue;
    s.steps += 1;
    s.to_zero += lane.to_zero[i];
    s.nonzero += lane.count[i] - lane.source_zero[i];
    s.ref_largest = std::max(s.ref_largest, reference.abs_max[i]);
    s.largest = std::max(s.largest, lane.abs_max[i]);
    s.scale = lane.scale[i];
    const bool vanished = lane.all_zero(i) && reference.sum_sq[i] > 0;
    s.zero_steps += vanished;
    // A layer without gradients in FP32 loses nothing.
    double lost = reference.sum_sq[i] > 0 ? ratio(lane.round_err_sq[i], lane.sum_sq[i]) : 0;
    if (lost < rounding_[i]) lost = 0;
    const bool is_sum = site.point == Point::kAccumulator;
    if (is_sum) lost = step == 0 && !skipped ? added_error(site, lane) : 0;
    if (is_storage(site) && lost > 0 && !matters(site, lane)) lost = 0;
    if (lane.to_zero[i] > 0) s.underflow += lost;
    if (lane.saturated[i] > 0) s.saturated += lost;
    if (vanished || (lost > 0 && lane.to_zero[i] + lane.saturated[i] > 0)) {
      if (s.first < 0) s.first = step;
      s.last = step;
    }
  }
}

Finding LostShares::at(FindingKind kind, const Site& site, double share) const {
  const auto i = static_cast<size_t>(site.id);
  const SiteShares& s = shares_[i];
  Finding f{.kind = kind,
            .lane = lane_,
            .first_step = std::max<int64_t>(s.first, 0),
            .last_step = std::max<int64_t>(s.last, 0),
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

// Parameter gradients only; compared with the largest gradient of the layer, in the reference.
bool LostShares::is_noise(const Site& site) const {
  if (site.role != Role::kGradWeight) return false;
  double largest = 0;
  for (const Site& other : sites_.sites) {
    if (other.layer != site.layer || !is_gradient(other)) continue;
    largest = std::max(largest, shares_[static_cast<size_t>(other.id)].ref_largest);
  }
  return shares_[static_cast<size_t>(site.id)].ref_largest < std::ldexp(largest, -kNoiseOctaves);
}

void LostShares::add_no_gradient(std::vector<Finding>& out) const {
  const auto is_gone = [&](size_t i) {
    return shares_[i].zero_steps > 0 && 2 * shares_[i].zero_steps >= shares_[i].steps;
  };
  // By rounding, here or in the sums of the same node: zeros alone may be a layer that is dead.
  const auto became_zero = [&](const Site& site) {
    return std::ranges::any_of(sites_.sites, [&](const Site& other) {
      return other.node == site.node && shares_[static_cast<size_t>(other.id)].to_zero > 0;
    });
  };
  for (const Site& site : sites_.sites) {
    const auto i = static_cast<size_t>(site.id);
    if (!is_gradient(site) || !is_gone(i) || is_noise(site) || !became_zero(site)) continue;
    Finding f = at(FindingKind::kNoGradient, site, 1);
    f.steps = shares_[i].zero_steps;
    std::set<std::string> layers = {site.layer};
    for (const Site& later : sites_.sites) {
      const bool gone = later.id > site.id && is_gradient(later) &&
                        is_gone(static_cast<size_t>(later.id)) && !is_noise(later);
      if (gone && layers.insert(later.layer).second) f.consequences.push_back(later.id);
    }
    out.push_back(f);
    return;  // what comes later in the backward pass follows from it
  }
}

// The origin is the first site in execution order that loses at least half as much as the worst.
void LostShares::add_underflow(bool backward, std::vector<Finding>& out) const {
  const auto share = [&](const Site& site) {
    const SiteShares& s = shares_[static_cast<size_t>(site.id)];
    const bool belongs =
        is_in_graph(site) && is_backward(site) == backward && (!backward || !is_noise(site));
    if (!belongs) return 0.0;
    return site.point == Point::kAccumulator ? s.underflow : s.mean(s.underflow);
  };
  double worst = 0;
  for (const Site& site : sites_.sites) worst = std::max(worst, share(site));
  if (worst < kEnergyLimit) return;
  const Site* origin = nullptr;
  std::set<std::string> layers;
  Finding f;
  for (const Site& site : sites_.sites) {
    const double lost = share(site);
    if (lost < kEnergyLimit) continue;
    if (origin == nullptr) {
      if (2 * lost < worst) continue;
      origin = &site;
      f = at(backward ? FindingKind::kUnderflow : FindingKind::kForwardUnderflow, site, lost);
      layers.insert(site.layer);
    } else if (layers.insert(site.layer).second) {
      f.consequences.push_back(site.id);
    }
  }
  out.push_back(f);
}

// The worst site; the other layers beyond the limit follow as a list.
void LostShares::add_worst(FindingKind kind, double limit, double (*share_of)(const SiteShares&),
                           bool (*belongs)(const Site&), std::vector<Finding>& out) const {
  const Site* worst = nullptr;
  double most = limit;
  for (const Site& site : sites_.sites) {
    const double share = share_of(shares_[static_cast<size_t>(site.id)]);
    if (!belongs(site) || share < most) continue;
    worst = &site;
    most = share;
  }
  if (worst == nullptr) return;
  Finding f = at(kind, *worst, most);
  if (kind == FindingKind::kLostUpdates && !formats_.empty()) {
    const std::string parameter = worst->node.substr(worst->node.find(':') + 1);
    int32_t weight = sites_.find_update(parameter, Role::kMasterWeight);
    const bool has_master = weight >= 0 && !formats_[static_cast<size_t>(weight)].empty();
    if (!has_master) {
      weight = sites_.find_update(parameter, Role::kWeight);
    }
    if (weight >= 0) f.format = formats_[static_cast<size_t>(weight)];
  }
  std::set<std::string> layers = {worst->layer};
  for (const Site& site : sites_.sites) {
    if (!belongs(site) || share_of(shares_[static_cast<size_t>(site.id)]) < limit) continue;
    if (layers.insert(site.layer).second) f.consequences.push_back(site.id);
  }
  out.push_back(f);
}

void LostShares::add_swamping(const std::vector<AccumulatorHealth>& sums,
                              const std::vector<AccumulatorHealth>& of_reference,
                              std::vector<Finding>& out) const {
  const auto lost = [](const AccumulatorHealth& h) { return ratio(h.err_sq, h.exact_sq); };
  const Site* worst = nullptr;
  double most = kEnergyLimit, swamped_there = 0;
  std::set<std::string> layers;
  std::vector<int32_t> all;
  for (const Site& site : sites_.sites) {
    const auto i = static_cast<size_t>(site.id);
    if (i >= sums.size() || i >= of_reference.size() || sums[i].addends == 0) continue;
    const double swamped =
        static_cast<double>(sums[i].swamped) / static_cast<double>(sums[i].addends);
    if (swamped < kSwampedLimit || lost(sums[i]) < kEnergyLimit) continue;
    if (lost(of_reference[i]) >= kEnergyLimit) continue;  // the sum cancels in FP32, too
    if (layers.insert(site.layer).second) all.push_back(site.id);
    if (lost(sums[i]) < most) continue;
    most = lost(sums[i]);
    swamped_there = swamped;
    worst = &site;
  }
  if (worst == nullptr) return;
  Finding f = at(FindingKind::kSwamping, *worst, swamped_there);
  f.value = std::sqrt(most);  // relative error of the sum
  std::erase_if(
      all, [&](int32_t s) { return sites_.sites[static_cast<size_t>(s)].layer == worst->layer; });
  f.consequences = all;
  out.push_back(f);
}

std::vector<Finding> LostShares::findings(
    const Policy& policy, const std::vector<AccumulatorHealth>& sums,
    const std::vector<AccumulatorHealth>& of_reference) const {
  std::vector<Finding> out;
  add_worst(
      FindingKind::kStorageUnderflow, kEnergyLimit,
      [](const SiteShares& s) { return s.mean(s.underflow); }, is_storage, out);
  add_worst(
      FindingKind::kStateUnderflow, kStateLimit,
      [](const SiteShares& s) {
        return ratio(static_cast<double>(s.to_zero), static_cast<double>(s.nonzero));
      },
      is_state, out);
  add_no_gradient(out);
  if (out.empty() || out.back().kind != FindingKind::kNoGradient) add_underflow(true, out);
  add_underflow(false, out);
  add_worst(
      FindingKind::kSaturated, kEnergyLimit,
      [](const SiteShares& s) { return s.mean(s.saturated); },
      [](const Site& site) { return is_in_graph(site) || is_storage(site); }, out);
  const bool keeps_updates = policy.update_rounding == UpdateRounding::kKahan ||
                             policy.update_rounding == UpdateRounding::kStochastic ||
                             (policy.update_rounding == UpdateRounding::kStorage &&
                              policy.rounding == Rounding::kStochastic);
  if (!keeps_updates) {
    add_worst(
        FindingKind::kLostUpdates, kLostUpdateLimit,
        [](const SiteShares& s) {
          const double lost = ratio(s.stagnant_sq, s.update_sq);
          const double of_reference = ratio(s.ref_stagnant_sq, s.ref_update_sq);
          return lost > 2 * of_reference ? lost : 0;
        },
        is_update, out);
  }
  add_swamping(sums, of_reference, out);
  return out;
}

}  // namespace lockstep

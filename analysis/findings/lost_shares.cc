// See lost_shares.h.
#include "analysis/findings/lost_shares.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "analysis/findings/nonfinite.h"
#include "analysis/run/noise_gradient.h"
#include "emulation/format/format.h"
#include "src/graph/op.h"

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

LostShares::LostShares(int lane, const SiteTable& sites, const std::vector<std::string>& formats,
                       std::vector<OptimizerState> states)
    : lane_(lane),
      sites_(sites),
      formats_(formats),
      states_(std::move(states)),
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
    s.ref_zero += reference.source_zero[i];
    s.ref_count += reference.count[i];
    s.sum_sq += lane.sum_sq[i];
    s.round_err_sq += std::isfinite(lane.round_err_sq[i]) ? lane.round_err_sq[i] : 0;
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
    const bool lost_state = is_state(site) && lane.to_zero[i] > 0;
    if (vanished || lost_state || (lost > 0 && lane.to_zero[i] + lane.saturated[i] > 0)) {
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

bool LostShares::is_gone(const Site& site) const {
  const SiteShares& s = shares_[static_cast<size_t>(site.id)];
  return s.zero_steps > 0 && 2 * s.zero_steps >= s.steps;
}

// The rounded forward value that leaves the op no slope (a tanh that became 1), where the gradient
// that comes in is not zero; -1: none. Zeros in the value itself are a layer that is dead.
int32_t LostShares::flat_operand(const Site& site) const {
  int32_t found = -1;
  if (find_op(site.op).has_gemm_accumulator) return found;  // has no slope of its own
  for (const int32_t feed : site.feeds) {
    const Site& operand = sites_.sites[static_cast<size_t>(feed)];
    if (is_gradient(operand) && is_gone(operand)) return -1;
    for (int32_t at = feed; at >= 0;) {  // back to the rounding that made the value
      const Site& value = sites_.sites[static_cast<size_t>(at)];
      const SiteShares& s = shares_[static_cast<size_t>(at)];
      if (!is_backward(value) && s.round_err_sq > 0 && s.nonzero > s.to_zero) found = at;
      const bool copies = value.point == Point::kOperand && value.feeds.size() == 1;
      at = copies ? value.feeds.front() : -1;
    }
  }
  return found;
}

void LostShares::add_no_gradient(std::vector<Finding>& out) const {
  // By rounding, here or in the sums of the same node: zeros alone may be a layer that is dead.
  const auto became_zero = [&](const Site& site) {
    return std::ranges::any_of(sites_.sites, [&](const Site& other) {
      return other.node == site.node && shares_[static_cast<size_t>(other.id)].to_zero > 0;
    });
  };
  for (const Site& site : sites_.sites) {
    const auto i = static_cast<size_t>(site.id);
    if (!is_gradient(site) || !is_gone(site) || is_noise(site)) continue;
    const int32_t flat = became_zero(site) ? -1 : flat_operand(site);
    if (flat < 0 && !became_zero(site)) continue;
    Finding f = at(FindingKind::kNoGradient, site, 1);
    f.cause = flat;
    f.steps = shares_[i].zero_steps;
    std::set<std::string> layers = {site.layer};
    for (const Site& later : sites_.sites) {
      const bool gone =
          later.id > site.id && is_gradient(later) && is_gone(later) && !is_noise(later);
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
    const std::string parameter = parameter_of(*worst);
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

// Of the operand of a plain sum, repeated to the sum's shape; 0: not measured.
double LostShares::energy_of(const Site& operand) const {
  const Site* at = &operand;
  while (shares_[static_cast<size_t>(at->id)].steps == 0) {  // it is read as it was written
    if (at->point != Point::kOperand || at->feeds.size() != 1) return 0;
    at = &sites_.sites[static_cast<size_t>(at->feeds.front())];
  }
  return shares_[static_cast<size_t>(at->id)].sum_sq /
         static_cast<double>(element_count(operand.shape));
}

// Whether zeros of the sum's readers hide the operand's elements: a mask, which swamps scores on
// purpose before a softmax makes 0 of them. By the reference.
bool LostShares::is_masked(const Site& sum, const Site& operand) const {
  const auto zero_rate = [&](const Site& site) {
    const SiteShares& s = shares_[static_cast<size_t>(site.id)];
    return ratio(static_cast<double>(s.ref_zero), static_cast<double>(s.ref_count));
  };
  const double hidden = 1 - zero_rate(operand);
  return std::ranges::any_of(sites_.sites, [&](const Site& reader) {
    const bool reads = reader.id > sum.id && std::ranges::count(reader.feeds, sum.id) > 0;
    if (!reads || is_backward(reader)) return false;
    return std::ranges::any_of(sites_.sites, [&](const Site& result) {
      return result.node == reader.node && result.point == Point::kOutput &&
             zero_rate(result) > 0 && zero_rate(result) >= hidden;
    });
  });
}

// Plain sums of the forward pass (a residual stream): what rounding the sum takes, against its
// smaller operand. A bias that is still small is no finding, nor is a sum of numbers (losses),
// whose rounding changes no gradient, nor what FP32 would lose as well.
void LostShares::add_lost_operands(std::vector<Finding>& out) const {
  const double u = find_format("fp32").unit_roundoff();
  Finding worst;
  std::set<std::string> layers;
  std::vector<int32_t> all;
  for (const Site& site : sites_.sites) {
    const SiteShares& s = shares_[static_cast<size_t>(site.id)];
    const bool adds = is_in_graph(site) && !is_backward(site) && site.point == Point::kOutput &&
                      element_count(site.shape) > 1 && s.round_err_sq > 0 &&
                      (find_op(site.op).is_sum || find_op(site.op).is_difference);
    if (!adds) continue;
    const auto count = static_cast<double>(element_count(site.shape));
    const Site *smaller = nullptr, *larger = nullptr;
    double least = s.sum_sq / count, most = 0;
    for (const Site& operand : sites_.sites) {
      if (operand.node != site.node || operand.point != Point::kOperand) continue;
      const double energy = energy_of(operand);
      if (energy > most) larger = &operand, most = energy;
      const bool is_bias =
          operand.role == Role::kWeight && element_count(operand.shape) < element_count(site.shape);
      if (energy == 0 || energy >= least || is_bias) continue;
      smaller = &operand;
      least = energy;
    }
    if (smaller == nullptr) continue;
    const double lost = s.round_err_sq / count / least;
    if (lost < kSwampedLimit || kRoundingTimes * u * u * s.sum_sq / count >= kSwampedLimit * least)
      continue;
    if (larger != nullptr && larger != smaller && is_masked(site, *larger)) continue;
    if (layers.insert(site.layer).second) all.push_back(site.id);
    if (worst.site >= 0 && lost <= worst.share) continue;
    worst = at(FindingKind::kSwamping, site, lost);
    worst.cause = smaller->id;
    worst.value = std::sqrt(s.sum_sq / count / least);  // how many times the sum is larger
  }
  if (worst.site < 0) return;
  const std::string& layer = sites_.sites[static_cast<size_t>(worst.site)].layer;
  std::erase_if(all,
                [&](int32_t s) { return sites_.sites[static_cast<size_t>(s)].layer == layer; });
  worst.consequences = all;
  out.push_back(worst);
}

// The worst optimizer state; a share of elements counts where the state divides.
void LostShares::add_lost_state(std::vector<Finding>& out) const {
  const auto state_of = [&](const Site& site) {
    const auto i = static_cast<size_t>(site.id);
    return i < states_.size() ? states_[i] : OptimizerState{};
  };
  const auto excess = [&](const Site& site) {  // over the limit, in multiples of it
    const SiteShares& s = shares_[static_cast<size_t>(site.id)];
    if (!is_state(site)) return 0.0;
    const double elements = ratio(static_cast<double>(s.to_zero), static_cast<double>(s.nonzero));
    return std::max(s.mean(s.underflow) / kEnergyLimit,
                    state_of(site).divides ? elements / kStateLimit : 0);
  };
  const Site* worst = nullptr;
  std::set<std::string> layers;
  for (const Site& site : sites_.sites) {
    // A lost divisor makes weights jump, and comes before lost averages.
    const auto rank = [&](const Site& s) { return std::pair(state_of(s).divides, excess(s)); };
    if (excess(site) >= 1 && (worst == nullptr || rank(site) > rank(*worst))) worst = &site;
  }
  if (worst == nullptr) return;
  const SiteShares& s = shares_[static_cast<size_t>(worst->id)];
  const bool divides = state_of(*worst).divides;
  Finding f = at(FindingKind::kStateUnderflow, *worst,
                 divides ? ratio(static_cast<double>(s.to_zero), static_cast<double>(s.nonzero))
                         : s.mean(s.underflow));
  layers.insert(worst->layer);
  for (const Site& site : sites_.sites) {
    if (excess(site) >= 1 && layers.insert(site.layer).second) f.consequences.push_back(site.id);
  }
  out.push_back(f);
}

std::vector<Finding> LostShares::findings(
    const Policy& policy, const std::vector<AccumulatorHealth>& sums,
    const std::vector<AccumulatorHealth>& of_reference) const {
  std::vector<Finding> out;
  add_worst(
      FindingKind::kStorageUnderflow, kEnergyLimit,
      [](const SiteShares& s) { return s.mean(s.underflow); }, is_storage, out);
  add_lost_state(out);
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
  add_lost_operands(out);
  return out;
}

}  // namespace lockstep

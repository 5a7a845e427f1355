// See lost_shares.h.
#include "analysis/findings/lost_shares.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "analysis/findings/nonfinite.h"
#include "analysis/run/energy.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

bool is_gone(const SiteShares& s) {
  return s.zero_steps > 0 && 2 * s.zero_steps >= s.steps;
}

// The rounded forward value that leaves the op no slope (a tanh that became 1), where the gradient
// that comes in is not zero; -1: none. Zeros in the value itself are a layer that is dead.
int32_t flat_operand(const ShareTally& tally, const Site& site) {
  int32_t found = -1;
  if (find_op(site.op).sums.of_products) return found;  // has no slope of its own
  for (const int32_t feed : site.feeds) {
    const Site& operand = tally.sites()[static_cast<size_t>(feed)];
    if (is_gradient(operand) && is_gone(tally.of(operand))) return -1;
    for (int32_t at = feed; at >= 0;) {  // back to the rounding that made the value
      const Site& value = tally.sites()[static_cast<size_t>(at)];
      const SiteShares& s = tally.of(at);
      if (!is_backward(value) && s.round_err_sq > 0 && s.nonzero > s.to_zero) found = at;
      const bool copies = value.point == Point::kOperand && value.feeds.size() == 1;
      at = copies ? value.feeds.front() : -1;
    }
  }
  return found;
}

void add_no_gradient(const ShareTally& tally, std::vector<Finding>& out) {
  // By rounding, here or in the sums of the same node: zeros alone may be a layer that is dead.
  const auto became_zero = [&](const Site& site) {
    return std::ranges::any_of(tally.sites(), [&](const Site& other) {
      return other.node == site.node && tally.of(other).to_zero > 0;
    });
  };
  for (const Site& site : tally.sites()) {
    if (!is_gradient(site) || !is_gone(tally.of(site)) || tally.is_noise(site)) continue;
    const int32_t flat = became_zero(site) ? -1 : flat_operand(tally, site);
    if (flat < 0 && !became_zero(site)) continue;
    Finding f = tally.finding(FindingKind::kNoGradient, site, 1);
    f.cause = flat;
    f.steps = tally.of(site).zero_steps;
    std::set<std::string> layers = {site.layer};
    for (const Site& later : tally.sites()) {
      const bool gone = later.id > site.id && is_gradient(later) && is_gone(tally.of(later)) &&
                        !tally.is_noise(later);
      if (gone && layers.insert(later.layer).second) f.consequences.push_back(later.id);
    }
    out.push_back(f);
    return;  // what comes later in the backward pass follows from it
  }
}

// What underflow takes of the site's energy; of a gradient also of the weight gradient made from
// it.
double underflow_share(const ShareTally& tally, const Site& site, bool backward) {
  if (!is_in_graph(site) || is_backward(site) != backward) return 0;
  if (backward && tally.is_noise(site)) return 0;
  const SiteShares& s = tally.of(site);
  const double own = s.mean(s.underflow);
  if (s.weight_gradient < 0) return own;
  const Site& made = tally.sites()[static_cast<size_t>(s.weight_gradient)];
  const double spoilt = s.weight_share / static_cast<double>(s.judged_weights);
  const bool counts = spoilt >= kEnergyLimit && !tally.is_noise(made);
  return counts ? std::max(own, spoilt) : own;
}

// The origin is the first site in execution order that loses at least half as much as the worst.
void add_underflow(const ShareTally& tally, bool backward, std::vector<Finding>& out) {
  double worst = 0;
  for (const Site& site : tally.sites()) {
    worst = std::max(worst, underflow_share(tally, site, backward));
  }
  if (worst < kEnergyLimit) return;
  bool found = false;
  std::set<std::string> layers;
  Finding f;
  for (const Site& site : tally.sites()) {
    const double lost = underflow_share(tally, site, backward);
    if (lost < kEnergyLimit) continue;
    if (!found) {
      if (2 * lost < worst) continue;
      found = true;
      f = tally.finding(backward ? FindingKind::kUnderflow : FindingKind::kForwardUnderflow, site,
                        lost);
      layers.insert(site.layer);
      const SiteShares& s = tally.of(site);
      f.outlier_step = s.outlier_step();
      f.share = std::min(s.mean(s.underflow), 1.0);
      if (lost > f.share) {
        f.spoilt = s.weight_gradient;
        f.spoilt_error = std::sqrt(lost);
      }
    } else if (layers.insert(site.layer).second) {
      f.consequences.push_back(site.id);
    }
  }
  out.push_back(f);
}

// The worst site; the other layers beyond the limit follow as a list.
void add_worst(const ShareTally& tally, FindingKind kind, double limit,
               const std::function<double(const SiteShares&)>& share, bool (*belongs)(const Site&),
               std::vector<Finding>& out) {
  const Site* worst = nullptr;
  double most = limit;
  for (const Site& site : tally.sites()) {
    const double here = share(tally.of(site));
    if (!belongs(site) || here < most) continue;
    worst = &site;
    most = here;
  }
  if (worst == nullptr) return;
  Finding f = tally.finding(kind, *worst, most);
  if (kind == FindingKind::kLostUpdates) {
    const std::string parameter = parameter_of(*worst);
    int32_t weight = tally.table().find_update(parameter, Role::kMasterWeight);
    if (weight < 0 || tally.format(weight).empty()) {  // without masters
      weight = tally.table().find_update(parameter, Role::kWeight);
    }
    if (weight >= 0) f.format = tally.format(weight);
  }
  std::set<std::string> layers = {worst->layer};
  for (const Site& site : tally.sites()) {
    if (!belongs(site) || share(tally.of(site)) < limit) continue;
    if (layers.insert(site.layer).second) f.consequences.push_back(site.id);
  }
  out.push_back(f);
}

}  // namespace

std::vector<Finding> find_lost_shares(const ShareTally& tally, const Policy& policy) {
  std::vector<Finding> out;
  add_worst(
      tally, FindingKind::kStorageUnderflow, kEnergyLimit,
      [](const SiteShares& s) { return s.mean(s.underflow); }, is_storage, out);
  add_no_gradient(tally, out);
  if (out.empty() || out.back().kind != FindingKind::kNoGradient) add_underflow(tally, true, out);
  add_underflow(tally, false, out);
  add_worst(
      tally, FindingKind::kSaturated, kEnergyLimit,
      [](const SiteShares& s) { return s.mean(s.saturated); },
      [](const Site& site) { return is_in_graph(site) || is_storage(site); }, out);
  const bool keeps_updates = policy.update_rounding == UpdateRounding::kKahan ||
                             policy.update_rounding == UpdateRounding::kStochastic ||
                             (policy.update_rounding == UpdateRounding::kStorage &&
                              policy.rounding == Rounding::kStochastic);
  const auto is_update = [](const Site& site) { return site.role == Role::kUpdate; };
  if (!keeps_updates) {
    add_worst(
        tally, FindingKind::kLostUpdates, kLostUpdateLimit,
        [](const SiteShares& s) { return s.lost_additions(); }, is_update, out);
  }
  const bool has_lost = !out.empty() && out.back().kind == FindingKind::kLostUpdates;
  if (!keeps_updates && !has_lost) {
    add_worst(
        tally, FindingKind::kLostUpdates, kVanishedUpdates,
        [](const SiteShares& s) { return s.lost_tail(); }, is_update, out);
    if (!out.empty() && out.back().kind == FindingKind::kLostUpdates) {
      Finding& tail = out.back();
      tail.is_tail = true;
      tail.first_step = tally.of(tail.site).tail_first;
      tail.steps = tally.of(tail.site).tail_steps;
    }
  }
  return out;
}

}  // namespace lockstep

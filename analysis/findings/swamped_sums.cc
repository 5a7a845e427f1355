// See swamped_sums.h.
#include "analysis/findings/swamped_sums.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "analysis/findings/nonfinite.h"
#include "analysis/run/energy.h"
#include "emulation/format/format.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

// The buffer of the output's shape that the sites before it lead to; "" if there are several.
std::string buffer_behind(const SiteTable& table, const Site& output) {
  std::set<std::string> found;
  std::vector<bool> reached(table.sites.size());
  reached[static_cast<size_t>(output.id)] = true;
  for (auto i = static_cast<size_t>(output.id) + 1; i-- > 0;) {
    const Site& site = table.sites[i];
    if (!reached[i]) continue;
    if (is_storage(site) && site.value.starts_with("b:") && site.shape == output.shape) {
      found.insert(site.value.substr(2));
    }
    for (const int32_t feed : site.feeds) reached[static_cast<size_t>(feed)] = true;
  }
  return found.size() == 1 ? *found.begin() : "";
}

// "running_var", the buffer that the op's output becomes; "" if that cannot be told. The outputs
// after the first renew the buffers in the order of the operands.
std::string buffer_name(const SiteTable& table, const Site& output) {
  if (is_gradient(output)) return "";
  std::vector<std::string> buffers;
  for (const Site& operand : table.sites) {
    if (operand.node != output.node || operand.point != Point::kOperand) continue;
    if (operand.value.starts_with("b:")) buffers.push_back(operand.value.substr(2));
  }
  if (buffers.empty()) return buffer_behind(table, output);
  const auto at = static_cast<size_t>(std::max(output.index, 1)) - 1;
  if (at >= buffers.size() || (output.index == 0 && buffers.size() > 1)) return "";
  return buffers[at].substr(buffers[at].rfind('.') + 1);
}

std::vector<int32_t> other_layers(const ShareTally& tally, std::vector<int32_t> sites,
                                  const Site& worst) {
  std::erase_if(sites, [&](int32_t site) {
    return tally.sites()[static_cast<size_t>(site)].layer == worst.layer;
  });
  return sites;
}

void add_products(const ShareTally& tally, const std::vector<AccumulatorHealth>& sums,
                  const std::vector<AccumulatorHealth>& of_reference, std::vector<Finding>& out) {
  const auto lost = [](const AccumulatorHealth& h) { return share_of(h.err_sq, h.exact_sq); };
  const Site* worst = nullptr;
  double most = kEnergyLimit, swamped_there = 0;
  std::set<std::string> layers;
  std::vector<int32_t> all;
  for (const Site& site : tally.sites()) {
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
  Finding f = tally.finding(FindingKind::kSwamping, *worst, swamped_there);
  f.value = std::sqrt(most);  // relative error of the sum
  f.consequences = other_layers(tally, all, *worst);
  out.push_back(f);
}

// Sums that are not of products. Of a bias whose gradient is nothing but rounding, FP32 gets no
// more.
void add_other_sums(const ShareTally& tally, const Policy& policy,
                    const std::vector<AccumulatorHealth>& sums, std::vector<Finding>& out) {
  const Site* worst = nullptr;
  double most = kEnergyLimit;
  std::set<std::string> layers;
  std::vector<int32_t> all;
  for (const Site& site : tally.sites()) {
    const auto i = static_cast<size_t>(site.id);
    const bool is_other = i < sums.size() && sums[i].addends == 0;
    if (!is_other || site.point != Point::kOutput || tally.is_noise(site)) continue;
    const double lost = share_of(sums[i].err_sq, sums[i].exact_sq);
    if (lost < kEnergyLimit) continue;
    if (layers.insert(site.layer).second) all.push_back(site.id);
    if (lost < most) continue;
    most = lost;
    worst = &site;
  }
  if (worst == nullptr) return;
  Finding f = tally.finding(FindingKind::kSwamping, *worst, std::sqrt(most));
  f.value = std::sqrt(most);
  f.is_other_sum = true;
  const Format& sum = *policy.reduce_accumulator->format;
  if (!contains(sum, find_format("fp32"))) f.format = sum.name;
  f.consequences = other_layers(tally, all, *worst);
  out.push_back(f);
}

// The energy of a plain sum's operand, repeated to the sum's shape; 0: not measured.
double energy_of(const ShareTally& tally, const Site& operand) {
  const Site* at = &operand;
  while (tally.of(*at).steps == 0) {  // it is read as it was written
    if (at->point != Point::kOperand || at->feeds.size() != 1) return 0;
    at = &tally.sites()[static_cast<size_t>(at->feeds.front())];
  }
  return tally.of(*at).sum_sq / static_cast<double>(element_count(operand.shape));
}

// Whether zeros of the sum's readers hide the operand's elements: a mask, which swamps scores on
// purpose before a softmax makes 0 of them. By the reference.
bool is_masked(const ShareTally& tally, const Site& sum, const Site& operand) {
  const auto zero_rate = [&](const Site& site) {
    const SiteShares& s = tally.of(site);
    return share_of(static_cast<double>(s.ref_zero), static_cast<double>(s.ref_count));
  };
  const double hidden = 1 - zero_rate(operand);
  return std::ranges::any_of(tally.sites(), [&](const Site& reader) {
    const bool reads = reader.id > sum.id && std::ranges::count(reader.feeds, sum.id) > 0;
    if (!reads || is_backward(reader)) return false;
    return std::ranges::any_of(tally.sites(), [&](const Site& result) {
      return result.node == reader.node && result.point == Point::kOutput &&
             zero_rate(result) > 0 && zero_rate(result) >= hidden;
    });
  });
}

// Plain sums of the forward pass (a residual stream): what rounding the sum takes, against its
// smaller operand. Not findings: a bias that is still small; a sum of numbers (losses), whose
// rounding changes no gradient; what FP32 would lose as well.
void add_plain_sums(const ShareTally& tally, std::vector<Finding>& out) {
  const double u = find_format("fp32").unit_roundoff();
  Finding worst;
  std::set<std::string> layers;
  std::vector<int32_t> all;
  for (const Site& site : tally.sites()) {
    const SiteShares& s = tally.of(site);
    const bool adds = is_in_graph(site) && !is_backward(site) && site.point == Point::kOutput &&
                      element_count(site.shape) > 1 && s.round_err_sq > 0 &&
                      (find_op(site.op).meaning.is_sum || find_op(site.op).meaning.is_difference);
    if (!adds) continue;
    const auto count = static_cast<double>(element_count(site.shape));
    const Site *smaller = nullptr, *larger = nullptr;
    double least = s.sum_sq / count, most = 0;
    for (const Site& operand : tally.sites()) {
      if (operand.node != site.node || operand.point != Point::kOperand) continue;
      const double energy = energy_of(tally, operand);
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
    const bool is_mask = larger != nullptr && larger != smaller &&
                         (larger->stat_exempt || is_masked(tally, site, *larger));
    if (is_mask) continue;
    if (layers.insert(site.layer).second) all.push_back(site.id);
    if (worst.site >= 0 && lost <= worst.share) continue;
    worst = tally.finding(FindingKind::kSwamping, site, lost);
    worst.cause = smaller->id;
    worst.value = std::sqrt(s.sum_sq / count / least);  // how many times the sum is larger
  }
  if (worst.site < 0) return;
  worst.consequences = other_layers(tally, all, tally.sites()[static_cast<size_t>(worst.site)]);
  out.push_back(worst);
}

// What batches add to running statistics, where these are wrong in the end, and what micro-batches
// add to the gradients. Stochastic rounding of buffers loses nothing in the long run.
void add_additions(const ShareTally& tally, const Policy& policy,
                   const std::vector<double>& of_twin, std::vector<Finding>& out) {
  const Site* worst = nullptr;
  std::set<std::string> layers;
  std::vector<int32_t> all;
  for (const Site& site : tally.sites()) {
    const SiteShares& s = tally.of(site);
    if (!is_in_graph(site) || s.lost_additions() < kSwampedLimit) continue;
    const double by_chance =
        of_twin.empty() ? 0 : kTwinTimes * of_twin[static_cast<size_t>(site.id)];
    const bool harmless = policy.rounding == Rounding::kStochastic ||
                          (s.error_share < std::max(kEnergyLimit, by_chance) &&
                           (s.lost_additions() < kNoneTaken || s.left_behind() < kLeftBehind));
    if (!is_gradient(site) && harmless) continue;
    if (layers.insert(site.layer).second) all.push_back(site.id);
    if (worst == nullptr || s.lost_additions() > tally.of(*worst).lost_additions()) worst = &site;
  }
  if (worst == nullptr) return;
  Finding f = tally.finding(FindingKind::kSwamping, *worst, tally.of(*worst).lost_additions());
  f.text = buffer_name(tally.table(), *worst);
  f.consequences = other_layers(tally, all, *worst);
  out.push_back(f);
}

}  // namespace

std::vector<Finding> find_swamped_sums(const ShareTally& tally, const Policy& policy,
                                       const std::vector<AccumulatorHealth>& sums,
                                       const std::vector<AccumulatorHealth>& of_reference,
                                       const std::vector<double>& of_twin) {
  std::vector<Finding> out;
  add_products(tally, sums, of_reference, out);
  add_other_sums(tally, policy, sums, out);
  add_plain_sums(tally, out);
  add_additions(tally, policy, of_twin, out);
  return out;
}

}  // namespace lockstep

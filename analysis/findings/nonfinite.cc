// See nonfinite.h.
#include "analysis/findings/nonfinite.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "emulation/format/format.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

bool is_of_update(const Site& site) {
  return !is_in_graph(site) && !is_storage(site);
}

// How many micro-batches' gradients are added up at the site.
uint64_t micro_batches(const Site& site, const SiteRecord& record) {
  const auto elements = static_cast<uint64_t>(element_count(site.shape));
  return record.update.measured && elements > 0 ? record.update.stats.count / elements : 0;
}

}  // namespace

NonfiniteOrigins::NonfiniteOrigins(int lane, const SiteTable& sites,
                                   const std::vector<std::string>& formats, bool synced)
    : lane_(lane),
      sites_(sites),
      formats_(formats),
      synced_(synced),
      intended_(sites),
      skips_by_site_(sites.sites.size()) {}

// Whether the op adds up many numbers there: products, or more operand elements than results.
bool NonfiniteOrigins::is_sum(const Site& site) const {
  if (!is_in_graph(site) || site.point == Point::kOperand) return false;
  const OpDef& op = find_op(site.op);
  return op.sums.of_products || std::ranges::any_of(site.feeds, [&](int32_t feed) {
           return element_count(sites_.sites[static_cast<size_t>(feed)].shape) >
                  element_count(site.shape);
         });
}

int32_t NonfiniteOrigins::rounded_inside_as(const Site& site) const {
  if (!is_in_graph(site) || !is_backward(site) || site.point != Point::kOutput) return -1;
  const bool rounds = find_op(site.op).formats.rounds_inside == RoundsInside::kLogits;
  return rounds ? sites_.find(site.node, Point::kOperand, 0) : -1;
}

std::vector<int32_t> NonfiniteOrigins::consequences_of(size_t origin,
                                                       const std::vector<bool>& bad) const {
  std::vector<bool> reached(bad.size(), false);
  std::set<std::string> layers = {sites_.sites[origin].layer};
  std::vector<int32_t> out;
  reached[origin] = true;
  for (size_t i = origin + 1; i < bad.size(); ++i) {
    const Site& site = sites_.sites[i];
    const bool follows = std::ranges::any_of(
        site.feeds, [&](int32_t feed) { return reached[static_cast<size_t>(feed)]; });
    reached[i] = follows;
    if (follows && bad[i] && layers.insert(site.layer).second) out.push_back(site.id);
  }
  return out;
}

bool NonfiniteOrigins::renews_buffer(const Site& output) const {
  return std::ranges::any_of(sites_.sites, [&](const Site& operand) {
    return operand.node == output.node && operand.point == Point::kOperand &&
           operand.value.starts_with("b:");
  });
}

double NonfiniteOrigins::pole_of(const Site& site) const {
  return is_in_graph(site) ? find_op(site.op).meaning.pole_at : 0;
}

int32_t NonfiniteOrigins::operand_outside(const Site& site, const StepEvidence& lane) const {
  const bool can_leave = is_in_graph(site) && !find_op(site.op).meaning.outside.empty();
  if (!can_leave || lane[static_cast<size_t>(site.id)].stats.nan == 0) return -1;
  const int32_t operand = sites_.find(site.node, Point::kOperand, 0);
  return operand >= 0 && !lane.nonfinite(static_cast<size_t>(operand)) ? operand : -1;
}

int32_t NonfiniteOrigins::rounding_before(int32_t site, const StepEvidence& lane) const {
  std::vector<int32_t> level = sites_.sites[static_cast<size_t>(site)].feeds;
  std::set<int32_t> seen(level.begin(), level.end());
  while (!level.empty()) {
    std::vector<int32_t> next;
    for (const int32_t id : level) {
      if (lane[static_cast<size_t>(id)].stats.inexact > 0) return id;
      for (const int32_t feed : sites_.sites[static_cast<size_t>(id)].feeds) {
        if (seen.insert(feed).second) next.push_back(feed);
      }
    }
    level = std::move(next);
  }
  return -1;
}

int32_t NonfiniteOrigins::vanished_operand(const Site& site, const StepEvidence& lane,
                                           const StepEvidence& reference) const {
  std::vector<int32_t> operands;
  const int pole = is_in_graph(site) ? find_op(site.op).meaning.pole_operand : -1;
  if (pole >= 0) operands.push_back(sites_.find(site.node, Point::kOperand, pole));
  for (const Site& other : sites_.sites) {
    const bool is_state =
        !is_in_graph(site) && other.node == site.node && other.role == Role::kOptimizerState;
    if (is_state) operands.push_back(other.id);
  }
  std::erase(operands, -1);
  int32_t found = -1;
  uint64_t most = 0;
  for (const int32_t operand : operands) {
    if (const double at = pole_of(site); at != 0) {
      const bool is_there = lane.largest(static_cast<size_t>(operand)) == at &&
                            reference.largest(static_cast<size_t>(operand)) < at;
      if (is_there) found = operand;
      continue;
    }
    const auto o = static_cast<size_t>(operand);
    const uint64_t zeros = lane[o].stats.source_zero + lane[o].stats.to_zero;
    if (zeros <= reference[o].stats.source_zero || zeros - reference[o].stats.source_zero <= most)
      continue;
    most = zeros - reference[o].stats.source_zero;
    found = operand;
  }
  return found;
}

int32_t NonfiniteOrigins::stored_cause(int32_t site, const StepEvidence& lane,
                                       const StepEvidence& reference) const {
  const auto excess = [&](int32_t id) {  // share of zeros that the reference does not have
    const auto i = static_cast<size_t>(id);
    const uint64_t zeros = lane[i].stats.source_zero + lane[i].stats.to_zero;
    if (lane[i].stats.count == 0 || zeros <= reference[i].stats.source_zero) return 0.0;
    return static_cast<double>(zeros - reference[i].stats.source_zero) /
           static_cast<double>(lane[i].stats.count);
  };
  int32_t at = site;
  while (!is_storage(sites_.sites[static_cast<size_t>(at)])) {
    const std::vector<int32_t>& feeds = sites_.sites[static_cast<size_t>(at)].feeds;
    const auto most = std::ranges::max_element(feeds, {}, excess);
    const bool goes_on = lane[static_cast<size_t>(at)].stats.to_zero == 0 && most != feeds.end() &&
                         excess(*most) > 0 && excess(*most) >= kMadeZeros * excess(at);
    if (!goes_on) return at;
    at = *most;
  }
  return at;
}

Finding NonfiniteOrigins::describe(int64_t step, const Site& site, const StepEvidence& lane,
                                   const StepEvidence& reference) const {
  const auto i = static_cast<size_t>(site.id);
  Finding f{.lane = lane_,
            .first_step = step,
            .last_step = step,
            .site = site.id,
            .backward = is_backward(site)};
  if (!formats_.empty()) f.format = formats_[i];
  if (!f.format.empty()) f.limit = find_format(f.format).max_finite;
  f.scale = std::isfinite(lane[i].scale) ? lane[i].scale : 1;
  for (const int32_t feed : site.feeds) {  // an update: its gradient is the sum of finite ones
    const Site& gradient = sites_.sites[static_cast<size_t>(feed)];
    const uint64_t added = micro_batches(gradient, lane[static_cast<size_t>(feed)]);
    if (!is_of_update(site) || added < 2 || formats_.empty()) continue;
    const std::string& format = formats_[static_cast<size_t>(feed)];
    const double together = static_cast<double>(added) * lane.largest(static_cast<size_t>(feed));
    if (format.empty() || !(together > find_format(format).max_finite)) continue;
    f = describe(step, gradient, lane, reference);
    f.kind = FindingKind::kSumOverflow;
    f.text = std::to_string(added) + " micro-batches";
    return f;
  }
  const double expected = reference.largest(i) * f.scale;
  f.value = std::isfinite(lane[i].stats.abs_max) ? lane[i].stats.abs_max : expected;
  f.share = static_cast<double>(lane[i].stats.to_infinity + lane[i].stats.nan) /
            static_cast<double>(lane[i].stats.count);
  if (const int32_t as = rounded_inside_as(site); as >= 0 && !formats_.empty()) {
    f.format = formats_[static_cast<size_t>(as)];
    if (!f.format.empty()) f.limit = find_format(f.format).max_finite;
    f.value = expected;
    return f;
  }
  // Infinite before the rounding.
  const bool formed_before = lane[i].stats.to_infinity == 0 || std::isinf(lane[i].stats.abs_max);
  if (lane[i].stats.nan > 0 || formed_before) f.cause = vanished_operand(site, lane, reference);
  if (f.cause >= 0) {
    f.pole = pole_of(site);
    const bool is_compared = reference[static_cast<size_t>(f.cause)].stats.count > 0;
    if (f.pole == 0 && is_compared) f.cause = stored_cause(f.cause, lane, reference);
    const Site& cause = sites_.sites[static_cast<size_t>(f.cause)];
    const bool is_value = is_in_graph(cause) && !is_storage(cause);
    if (is_value && lane[static_cast<size_t>(f.cause)].stats.to_zero == 0) {
      f.rounded = rounding_before(f.cause, lane);
    }
  }
  if (const int32_t operand = operand_outside(site, lane); f.cause < 0 && operand >= 0) {
    f.cause = operand;
    f.outside = find_op(site.op).meaning.outside;
    f.rounded = rounding_before(operand, lane);
  }
  if (lane[i].stats.nan > 0 || f.cause >= 0) {
    f.kind = FindingKind::kInvalid;
    f.text = lane[i].stats.nan > 0 ? "NaN" : "infinite";
  } else if (site.role == Role::kOptimizerState) {
    f.kind = FindingKind::kStateOverflow;
  } else if (is_storage(site)) {
    f.kind = FindingKind::kStorageOverflow;
  } else if (site.point == Point::kAccumulator || (formed_before && is_sum(site))) {
    f.kind = FindingKind::kSumOverflow;
  }
  return f;
}

void NonfiniteOrigins::add(int64_t step, bool skipped, const StepEvidence& lane,
                           const StepEvidence& reference) {
  std::vector<bool> bad(sites_.sites.size());
  for (size_t i = bad.size(); i-- > 0;) {  // readers first
    bad[i] = lane.nonfinite(i) && !reference.nonfinite(i);
    if (!bad[i] || !is_storage(sites_.sites[i])) continue;
    const auto agrees = [&](int32_t reader) {
      const auto r = static_cast<size_t>(reader);
      return lane[r].stats.count == 0 || bad[r];
    };
    const std::vector<int32_t>& readers = intended_.readers()[i];
    bad[i] = readers.empty() || std::ranges::any_of(readers, agrees);
  }
  if (std::ranges::count(bad, true) == 0) return;
  const std::vector<bool> disappears = intended_.absorbed(synced_ || step == 0, lane, bad);
  bool first_of_step = true, leaves_traces = false;
  int32_t spoilt_buffer = -1;
  for (const Site& site : sites_.sites) {
    const auto i = static_cast<size_t>(site.id);
    if (!bad[i]) continue;
    const bool is_kept = (site.role == Role::kBuffer && site.point == Point::kOutput) ||
                         (is_of_update(site) && !skipped);
    leaves_traces = leaves_traces || is_kept;
    if (is_kept && skipped && spoilt_buffer < 0 && renews_buffer(site)) spoilt_buffer = site.id;
    const auto is_bad = [&](int32_t feed) { return bad[static_cast<size_t>(feed)]; };
    if (std::ranges::any_of(site.feeds, is_bad) || disappears[i]) continue;
    if (skipped && is_backward(site)) {
      if (first_of_step) ++skips_by_site_[i];
      first_of_step = false;
      // No scale helps where the gradient is divided by a number that rounding made zero.
      if (vanished_operand(site, lane, reference) < 0) continue;
    }
    first_of_step = false;
    const auto same_origin = [&](const Finding& f) {
      const Site& origin = sites_.sites[static_cast<size_t>(f.site)];
      return origin.node == site.node ||
             (is_of_update(site) &&
              (is_of_update(origin) || (f.kind == FindingKind::kSumOverflow && !f.text.empty())));
    };
    auto known = std::ranges::find_if(findings_, same_origin);
    if (known == findings_.end()) {
      if (poisoned_) continue;
      known = findings_.insert(findings_.end(), describe(step, site, lane, reference));
      known->consequences = consequences_of(i, bad);
    } else if (known->last_step == step) {  // another output of the node
      if (known->first_step == step) {
        Finding other = describe(step, site, lane, reference);
        const bool names_cause = known->cause < 0 && other.cause >= 0;
        const bool is_larger = sites_.sites[static_cast<size_t>(known->site)].node == site.node &&
                               known->cause < 0 && other.value > known->value;
        // The update is infinite because its state is.
        const bool names_state =
            other.kind == FindingKind::kStateOverflow && known->kind == FindingKind::kOverflow;
        const bool says_more = other.kind < known->kind || names_state ||
                               (other.kind == known->kind && (names_cause || is_larger));
        if (says_more) {
          other.consequences = known->consequences;
          other.steps = known->steps;
          other.skipped_steps = known->skipped_steps;
          *known = other;
        }
      }
      continue;
    }
    known->last_step = step;
    known->steps += 1;
    known->skipped_steps += skipped;
    if (known->site == site.id && std::isfinite(lane[i].stats.abs_max)) {
      if (lane[i].stats.abs_max > known->value) {
        known->value = lane[i].stats.abs_max;
        known->scale = std::isfinite(lane[i].scale) ? lane[i].scale : 1;
      }
    }
  }
  poisoned_ = poisoned_ || leaves_traces;
  for (Finding& f : findings_) {
    if (f.last_step == step && !f.backward && f.spoilt_buffer < 0) f.spoilt_buffer = spoilt_buffer;
  }
  // No site qualified, but weights or buffers are spoilt: the first site in execution order.
  if (!findings_.empty() || !poisoned_ || skipped) return;
  for (const Site& site : sites_.sites) {
    const auto i = static_cast<size_t>(site.id);
    if (!bad[i] || disappears[i]) continue;
    findings_.push_back(describe(step, site, lane, reference));
    findings_.back().steps = 1;
    return;
  }
}

std::vector<Finding> NonfiniteOrigins::findings() const {
  return findings_;
}

}  // namespace lockstep

// See equal_weights.h.
#include "analysis/findings/equal_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/findings/nonfinite.h"
#include "analysis/findings/share_tally.h"
#include "emulation/format/format.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

double relative(double error_sq, double sum_sq) {
  return std::sqrt(share_of(error_sq, sum_sq));
}

bool is_forward_output(const Site& site) {
  return is_in_graph(site) && !is_storage(site) && !is_on_other_path(site) && !is_backward(site) &&
         site.point == Point::kOutput && site.role != Role::kBuffer;
}

// Of all weight gradients together; NaN without any.
double gradient_error(const SiteTable& sites, const std::vector<SiteRecord>& step) {
  double error = 0, whole = 0;
  for (const Site& site : sites.sites) {
    const SiteRecord& record = step[static_cast<size_t>(site.id)];
    if (site.role != Role::kGradWeight || site.point != Point::kOutput || !record.measured)
      continue;
    error += record.error.err_sq;
    whole += record.error.ref_sq;
  }
  return whole > 0 ? relative(error, whole) : std::numeric_limits<double>::quiet_NaN();
}

// Whether errors of operands add up, and not their shares: sums and differences.
bool adds_operands(const Site& output) {
  const OpDef& op = find_op(output.op);
  return op.meaning.is_sum || op.meaning.is_difference;
}

// From batch to batch: the root mean square of the changes, over sqrt(2).
double scatter_of(std::span<const double> losses) {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 1; i < losses.size(); ++i) {
    const double change = losses[i] - losses[i - 1];
    if (!std::isfinite(change)) continue;
    sum += change * change;
    ++count;
  }
  return count == 0 ? 0 : std::sqrt(sum / static_cast<double>(2 * count));
}

}  // namespace

double EqualStep::error() const {
  return std::fabs(loss - of_reference) / std::fabs(of_reference);
}

EqualWeightsTally::EqualWeightsTally(int lane, const SiteTable& sites,
                                     const std::vector<std::string>& formats)
    : lane_(lane), sites_(sites), formats_(formats) {}

void EqualWeightsTally::add(int64_t step, const LaneStep& own, const LaneStep& reference,
                            const LaneStep* twin) {
  const size_t count = sites_.sites.size();
  if (!own.alive || !std::isfinite(reference.loss)) return;
  if (!std::isfinite(own.loss)) {
    if (not_finite_ < 0) not_finite_ = step;
    return;
  }
  if (own.sites.size() != count || reference.sites.size() != count) return;
  EqualStep now{.step = step, .loss = own.loss, .of_reference = reference.loss};
  const bool has_twin = twin != nullptr && twin->alive && twin->sites.size() == count;
  if (has_twin) now.of_twin = twin->loss;
  const double of_gradients = gradient_error(sites_, own.sites);
  const double of_twin = has_twin ? gradient_error(sites_, twin->sites) : 0;
  const bool is_own = of_gradients > kAmplified * of_twin;
  least_gradient_error_ = std::min(least_gradient_error_, is_own ? of_gradients : 0.0);
  const auto gap = [](const EqualStep& s) { return std::fabs(s.loss - s.of_reference); };
  if (step_.step >= 0 && !(gap(now) > gap(step_))) return;
  step_ = now;
  errors_.assign(count, {});
  for (size_t i = 0; i < count; ++i) {
    const SiteRecord& record = own.sites[i];
    Errors& errors = errors_[i];
    errors.measured = record.measured && record.error.compared > 0;
    if (!errors.measured) continue;
    errors.of_values = relative(record.error.err_sq, record.error.ref_sq);
    errors.of_rounding = relative(record.stats.round_err_sq, record.stats.sum_sq);
    errors.size = std::sqrt(record.error.ref_sq / static_cast<double>(record.error.compared));
    errors.effect = record.effect.rounding + record.effect.range;
    if (has_twin && twin->sites[i].measured) {
      errors.of_twin = relative(twin->sites[i].error.err_sq, twin->sites[i].error.ref_sq);
    }
  }
  gradient_error_ = of_gradients;
  gradient_error_of_twin_ = of_twin;
}

double EqualWeightsTally::limit() const {
  double u = 0;
  for (const Site& site : sites_.sites) {
    const auto i = static_cast<size_t>(site.id);
    const bool is_forward = !is_backward(site) && (is_in_graph(site) || is_storage(site));
    if (!is_forward || i >= formats_.size() || formats_[i].empty()) continue;
    u = std::max(u, find_format(formats_[i]).unit_roundoff());
  }
  return std::clamp(kRoundoffs * u, kLeastShare, kMostShare);
}

// An operand that a lane does not round again has no record of its own: the site that made it.
int32_t EqualWeightsTally::measured_at(int32_t operand) const {
  while (!at(operand).measured && site(operand).feeds.size() == 1) {
    operand = site(operand).feeds.front();
  }
  return operand;
}

double EqualWeightsTally::share_in(const Site& site, int32_t operand) const {
  const Errors& errors = at(operand);
  const bool adds = is_forward_output(site) && adds_operands(site);
  return adds ? errors.of_values * errors.size : errors.of_values;
}

std::vector<int32_t> EqualWeightsTally::operands_of(const Site& output) const {
  std::vector<int32_t> operands;
  for (const int32_t feed : output.feeds) {
    if (site(feed).point != Point::kAccumulator) operands.push_back(measured_at(feed));
  }
  return operands;
}

std::optional<EqualWeightsTally::Amplifier> EqualWeightsTally::amplifier_at(
    const Site& output) const {
  const Errors& result = at(output.id);
  if (!is_forward_output(output) || !result.measured || result.of_values < kWrongResult) return {};
  if (kAmplified * result.of_twin > result.of_values) return {};
  Amplifier found{.site = output.id};
  double largest = 0, size = 0, contribution = 0;
  for (const int32_t operand : operands_of(output)) {
    const Errors& errors = at(operand);
    if (!errors.measured) return {};
    largest = std::max(largest, errors.of_values);
    size = std::max(size, errors.size);
    if (share_in(output, operand) <= contribution) continue;
    contribution = share_in(output, operand);
    found.operand = operand;
  }
  if (largest == 0 || largest >= kWrongResult) return {};
  found.gain = result.of_values / largest;
  if (result.size > 0) found.shrinking = size / result.size;
  if (found.gain < kAmplified) return {};
  return found;
}

std::vector<EqualWeightsTally::Amplifier> EqualWeightsTally::amplifiers() const {
  std::vector<Amplifier> all;
  for (const Site& site : sites_.sites) {
    if (const auto found = amplifier_at(site)) all.push_back(*found);
  }
  std::ranges::stable_sort(all, std::ranges::greater{}, &Amplifier::gain);
  return all;
}

// By site id: whether its error reaches the loss, at every op as one of the larger shares.
std::vector<bool> EqualWeightsTally::leads_to_loss() const {
  std::vector<bool> leads(sites_.sites.size(), false);
  for (size_t i = leads.size(); i-- > 0;) {
    const Site& site = sites_.sites[i];
    const bool is_loss = site.role == Role::kLoss && is_forward_output(site);
    if (!is_loss && !leads[i]) continue;
    leads[i] = true;
    double most = 0;
    for (const int32_t feed : site.feeds) most = std::max(most, share_in(site, measured_at(feed)));
    for (const int32_t feed : site.feeds) {
      const int32_t maker = measured_at(feed);
      if (at(maker).measured && kAmplified * share_in(site, maker) < most) continue;
      leads[static_cast<size_t>(feed)] = leads[static_cast<size_t>(maker)] = true;
    }
  }
  return leads;
}

// The site at or above this one whose own rounding makes most of the error here.
int32_t EqualWeightsTally::rounding_causing(int32_t id) const {
  constexpr double kMostOfEnergy = 0.25;
  int32_t here = id;
  while (true) {
    const Errors& errors = at(here);
    const double share = errors.of_rounding / errors.of_values;
    if (errors.measured && share * share >= kMostOfEnergy) return here;
    const Site& now = site(here);
    int32_t next = -1;
    double most = 0;
    for (const int32_t feed : now.feeds) {
      if (!at(measured_at(feed)).measured) continue;
      const double share = share_in(now, measured_at(feed));
      if (share <= most) continue;
      most = share;
      next = measured_at(feed);
    }
    if (next < 0 || next == here) return here;
    here = next;
  }
}

// The rounding that moves the loss most, to first order, if that is a good part of the gap.
int32_t EqualWeightsTally::largest_effect(double gap) const {
  constexpr double kGoodPart = 0.25;
  int32_t found = -1;
  double most = kGoodPart * std::fabs(gap);
  for (const Site& site : sites_.sites) {
    const double effect = std::fabs(at(site.id).effect);
    if (!std::isfinite(effect) || effect < most) continue;
    most = effect;
    found = site.id;
  }
  return found;
}

// The largest gain on the way to the loss. all_wrong: of results that are wrong by their own size.
std::optional<EqualWeightsTally::Amplifier> EqualWeightsTally::culprit(bool all_wrong) const {
  const std::vector<bool> leads = leads_to_loss();
  for (const Amplifier& amplifier : amplifiers()) {
    const bool counts = !all_wrong || at(amplifier.site).of_values >= 1;
    if (counts && leads[static_cast<size_t>(amplifier.site)]) return amplifier;
  }
  return {};
}

EqualStep EqualWeightsTally::judged(std::span<const double> losses) const {
  EqualStep out = step_;
  out.not_finite = not_finite_;
  if (out.step < 0) return out;
  out.gradient_error = least_gradient_error_;
  const double gap = std::fabs(out.loss - out.of_reference);
  const double unit = std::max(std::fabs(out.of_reference), scatter_of(losses));
  const double of_twin = std::isfinite(out.of_twin) ? std::fabs(out.of_twin - out.of_reference) : 0;
  out.has_wrong_loss = gap > limit() * unit && gap > kAmplified * of_twin;
  out.has_wrong_gradients = gradient_error_ > kWrongGradient &&
                            gradient_error_ > kAmplified * gradient_error_of_twin_ &&
                            culprit(/*all_wrong=*/true).has_value();
  return out;
}

std::optional<Finding> EqualWeightsTally::find(std::span<const double> losses) const {
  const EqualStep step = judged(losses);
  if (!step.is_wrong()) return {};
  Finding f{.kind = FindingKind::kCancellation,
            .lane = lane_,
            .first_step = step.step,
            .last_step = step.step,
            .steps = 1};
  if (step.has_wrong_loss) f.value = step.loss, f.limit = step.of_reference;
  f.spoilt_error = gradient_error_;
  const auto format_at = [&](int32_t id) {
    const auto i = static_cast<size_t>(id);
    return id >= 0 && i < formats_.size() ? formats_[i] : std::string();
  };
  if (const auto amplifier = culprit(/*all_wrong=*/!step.has_wrong_loss)) {
    f.site = amplifier->site;
    f.share = at(f.site).of_values;
    f.rounded = rounding_causing(amplifier->operand);
    f.format = format_at(f.rounded);
    const OpDef& op = find_op(site(f.site).op);
    const bool is_linear = adds_operands(site(f.site)) || op.sums.of_products;
    const bool cancels = is_linear && amplifier->shrinking >= kAmplified;
    f.text = cancels ? "cancellation" : "amplification";
    f.factor = cancels ? amplifier->shrinking : amplifier->gain;
    return f;
  }
  if (!step.has_wrong_loss) return {};
  const double gap = step.loss - step.of_reference;
  f.kind = FindingKind::kWrongLoss;
  f.site = largest_effect(gap);
  f.format = format_at(f.site);
  if (f.site >= 0) f.share = std::fabs(at(f.site).effect / gap);
  return f;
}

}  // namespace lockstep

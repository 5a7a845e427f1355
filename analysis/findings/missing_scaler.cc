// See missing_scaler.h.
#include "analysis/findings/missing_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/findings/nonfinite.h"
#include "emulation/format/format.h"

namespace lockstep {
namespace {

// A gradient may leave the format's range, and nothing but a loss scale would move it.
bool needs_loss_scale(const Policy& policy, const Site& site, const std::string& format) {
  if (format.empty() || !is_in_graph(site) || !is_backward(site)) return false;
  const Format& f = find_format(format);
  if (f.emin <= find_format("bf16").emin) return false;
  if (policy.scaling.kind == ScalingKind::kNone) return true;
  const FactorScaling& scaling = policy.scaling;
  const FactorFormat* factors[] = {&scaling.activation, &scaling.weight, &scaling.gradient};
  return std::ranges::none_of(factors, [&](const FactorFormat* factor) {
    const Format* e = factor->element;  // whatever its overflow rule
    return e != nullptr && e->precision == f.precision && e->emin == f.emin;
  });
}

}  // namespace

MissingScaler::MissingScaler(const SiteTable& sites, const std::vector<std::string>& formats)
    : sites_(sites), formats_(formats), largest_(sites.sites.size()) {}

void MissingScaler::add(const StepEvidence& reference) {
  for (size_t i = 0; i < largest_.size(); ++i) {
    const double found = reference[i].stats.abs_max;
    if (std::isfinite(found)) largest_[i] = std::max(largest_[i], found);
  }
}

double MissingScaler::largest_at(int32_t id) const {
  const Site& site = sites_.sites[static_cast<size_t>(id)];
  if (site.point != Point::kAccumulator) return largest_[static_cast<size_t>(id)];
  const auto result = std::ranges::find_if(sites_.sites, [&](const Site& s) {
    return s.node == site.node && s.point == Point::kOutput;
  });
  return result == sites_.sites.end() ? 0 : largest_[static_cast<size_t>(result->id)];
}

bool MissingScaler::is_accused(const Policy& policy, const Finding& f) const {
  const bool vanishes = f.kind == FindingKind::kNoGradient || f.kind == FindingKind::kUnderflow;
  if (!vanishes || f.site < 0) return false;
  // No scale helps a flat activation.
  if (f.kind == FindingKind::kNoGradient && f.cause >= 0) return false;
  const auto site = static_cast<size_t>(f.site);
  return needs_loss_scale(policy, sites_.sites[site], formats_[site]);
}

// NaN: no power of two above 1 suits the largest and the vanished gradients.
double MissingScaler::fitting_scale(const Policy& policy, const Finding& f) const {
  int most = std::numeric_limits<int>::max();
  for (const Site& site : sites_.sites) {
    const auto i = static_cast<size_t>(site.id);
    if (largest_[i] == 0 || !needs_loss_scale(policy, site, formats_[i])) continue;
    const double room = find_format(formats_[i]).max_finite / largest_[i];
    most = std::min(most, std::ilogb(room) - kScaleHeadroomOctaves);
  }
  int wanted = 1, least = 1;
  const auto raise = [&](int32_t id) {
    const auto i = static_cast<size_t>(id);
    const double largest = largest_at(id);
    if (largest == 0 || formats_[i].empty()) return;
    const int below = find_format(formats_[i]).emin - std::ilogb(largest);
    wanted = std::max(wanted, below + kRaisedOctaves);
    if (id == f.site) least = std::max(least, below);
  };
  raise(f.site);
  for (const int32_t id : f.consequences) raise(id);
  const int chosen = std::min(wanted, most);
  return chosen < least ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, chosen);
}

void MissingScaler::fold(const Policy& policy, std::span<const ScalerRecord> scalers,
                         std::vector<Finding>& findings) const {
  const bool has_scale = std::ranges::any_of(scalers, [](const ScalerRecord& s) {
    return s.skipped || (std::isfinite(s.scale) && s.scale != 1);
  });
  if (formats_.empty() || has_scale) return;
  const auto accused = [&](const Finding& f) { return is_accused(policy, f); };
  const auto first = std::ranges::find_if(findings, accused);
  if (first == findings.end() || first->scale != 1) return;  // scaled by a rule of the policy
  Finding folded = *first;
  folded.kind = FindingKind::kNoScaler;
  for (const Finding& other : findings) {
    if (&other != &*first && accused(other)) folded.consequences.push_back(other.site);
  }
  const auto site = static_cast<size_t>(folded.site);
  folded.value = largest_at(folded.site);
  folded.limit = find_format(formats_[site]).min_subnormal();
  folded.fitting_scale = fitting_scale(policy, folded);
  *first = folded;
  std::erase_if(findings, accused);
}

}  // namespace lockstep

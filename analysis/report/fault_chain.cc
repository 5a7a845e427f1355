// See fault_chain.h.
#include "analysis/report/fault_chain.h"

#include <algorithm>
#include <limits>

#include "analysis/run/health.h"
#include "emulation/format/format.h"

namespace lockstep {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

FaultLink link_of(const RunFile& run, int lane, int32_t site, const SiteRecord& step) {
  const auto i = static_cast<size_t>(site);
  const std::vector<std::string>& formats = run.lanes()[static_cast<size_t>(lane)].site_formats;
  FaultLink link{.site = site,
                 .format = formats.empty() ? "" : formats[i],
                 .largest = step.measured ? step.stats.abs_max : kNone,
                 .limit = kNone,
                 .exponents = std::nullopt};
  if (!link.format.empty()) link.limit = find_format(link.format).max_finite;
  const TensorStats& stats = step.stats;
  link.nonfinite_rate = SiteHealth::rate(stats.to_infinity + stats.nan, stats.count);
  link.zeroed_rate = SiteHealth::rate(stats.to_zero, stats.count - stats.source_zero);
  return link;
}

}  // namespace

FaultChain fault_chain(const RunFile& run, int lane, const Finding& finding) {
  FaultChain chain{.step = finding.first_step, .links = {}};
  std::vector<int32_t> sites = {finding.site};
  for (const int32_t site : finding.consequences) {
    if (site != finding.site) sites.push_back(site);
  }
  if (sites.size() > kMostLinks) {
    chain.left_out = sites.size() - kMostLinks;
    sites.resize(kMostLinks);
  }
  const LaneStep step = run.step(lane, chain.step);
  const bool has_histograms = std::ranges::binary_search(run.histogram_steps(lane), chain.step);
  for (const int32_t site : sites) {
    const SiteRecord& here = step.sites[static_cast<size_t>(site)];
    FaultLink link = link_of(run, lane, site, here);
    if (has_histograms) {
      link.exponents = exponents_of(site, here.stats.exponent_histogram, here.stats.source_zero);
    }
    chain.links.push_back(std::move(link));
  }
  return chain;
}

}  // namespace lockstep

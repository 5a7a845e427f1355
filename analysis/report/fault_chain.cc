// See fault_chain.h.
#include "analysis/report/fault_chain.h"

#include <algorithm>
#include <limits>

#include "analysis/findings/step_evidence.h"
#include "analysis/run/health.h"
#include "emulation/format/format.h"

namespace lockstep {
namespace {

FaultLink link_of(const RunFile& run, int lane, int32_t site, const StepEvidence& step) {
  const auto i = static_cast<size_t>(site);
  const std::vector<std::string>& formats = run.lanes()[static_cast<size_t>(lane)].site_formats;
  FaultLink link{.site = site,
                 .format = formats.empty() ? "" : formats[i],
                 .largest = step.abs_max[i],
                 .limit = std::numeric_limits<double>::quiet_NaN(),
                 .exponents = std::nullopt};
  if (!link.format.empty()) link.limit = find_format(link.format).max_finite;
  link.nonfinite_rate = SiteHealth::rate(step.to_infinity[i] + step.nan[i], step.count[i]);
  link.zeroed_rate = SiteHealth::rate(step.to_zero[i], step.count[i] - step.source_zero[i]);
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
  const StepEvidence step = read_evidence(run, lane, chain.step);
  const Numbers histogram = run.numbers_at(lane, quantity_of(Gathered::kHistograms), chain.step);
  for (const int32_t site : sites) {
    FaultLink link = link_of(run, lane, site, step);
    const auto i = static_cast<size_t>(site);
    if (!histogram.integers.empty()) {
      const std::span<const uint64_t> bins(&histogram.integers[i * kHistogramBins], kHistogramBins);
      link.exponents = exponents_of(site, bins, step.source_zero[i]);
    }
    chain.links.push_back(std::move(link));
  }
  return chain;
}

}  // namespace lockstep

// See exponents.h.
#include "analysis/report/exponents.h"

#include <algorithm>
#include <cmath>

#include "emulation/format/format.h"

namespace lockstep {
namespace {

constexpr int kFp32Bias = 127;
constexpr size_t kNonfiniteBin = kHistogramBins - 1;
constexpr int kMostBits = 16;

// The narrowest format that a lane holds the site in, if one has at most kMostBits.
const Format* narrowest_at(const RunFile& run, size_t site) {
  const Format* found = nullptr;
  for (const LaneInfo& lane : run.lanes()) {
    if (lane.site_formats.empty() || lane.site_formats[site].empty()) continue;
    const Format* here = &find_format(lane.site_formats[site]);
    if (here->storage_bits() > kMostBits) continue;
    if (found == nullptr || here->storage_bits() < found->storage_bits()) found = here;
  }
  return found;
}

RangeSample sample_of(const SiteExponents& exponents) {
  RangeSample sample{};
  sample.scaled = true;
  for (size_t i = 0; i < exponents.counts.size(); ++i) {
    const int bin = exponents.first + static_cast<int>(i) + kFp32Bias;
    sample.histogram[static_cast<size_t>(bin)] = exponents.counts[i];
  }
  sample.histogram[0] += exponents.zeros;
  sample.zeros = exponents.zeros;
  return sample;
}

}  // namespace

SiteExponents exponents_of(int32_t site, std::span<const uint64_t> histogram, uint64_t zeros) {
  SiteExponents out;
  out.site = site;
  out.zeros = std::min(zeros, histogram[0]);
  out.nonfinite = histogram[kNonfiniteBin];
  const auto of = [&](size_t bin) { return bin == 0 ? histogram[0] - out.zeros : histogram[bin]; };
  size_t begin = 0, end = kNonfiniteBin;
  while (begin < end && of(begin) == 0) ++begin;
  while (end > begin && of(end - 1) == 0) --end;
  out.first = static_cast<int>(begin) - kFp32Bias;
  for (size_t bin = begin; bin < end; ++bin) out.counts.push_back(of(bin));
  return out;
}

ExponentTally::ExponentTally(const RunFile& run, int lane)
    : run_(run),
      lane_(lane),
      covered_(run.total_histogram_steps(lane)),
      zeros_(run.sites().sites.size()) {}

void ExponentTally::on_step(const StepRecord& record) {
  if (record.step >= covered_ || !record.is_measured) return;
  ++steps_;
  const std::vector<SiteRecord>& sites = record.lanes[static_cast<size_t>(lane_)].sites;
  for (size_t i = 0; i < sites.size(); ++i) zeros_[i] += sites[i].stats.source_zero;
}

std::vector<SiteExponents> ExponentTally::exponents() const {
  const std::vector<uint64_t> histogram = run_.total_histogram(lane_);
  std::vector<SiteExponents> out;
  for (size_t i = 0; i < zeros_.size(); ++i) {
    const std::span<const uint64_t> bins(&histogram[i * kHistogramBins], kHistogramBins);
    SiteExponents one = exponents_of(static_cast<int32_t>(i), bins, zeros_[i]);
    if (!one.counts.empty() || one.nonfinite > 0) out.push_back(std::move(one));
  }
  return out;
}

std::vector<ScaleLoss> scale_losses(const RunFile& run, std::span<const SiteExponents> reference) {
  std::vector<ScaleLoss> out;
  for (const SiteExponents& exponents : reference) {
    const auto id = static_cast<size_t>(exponents.site);
    if (!run.sites().sites[id].scaled || exponents.counts.empty()) continue;
    const Format* format = narrowest_at(run, id);
    if (format == nullptr) continue;
    ScaleLoss loss{.reference = exponents, .format = format->name, .to_zero = {}, .overflow = {}};
    const RangeSample sample = sample_of(exponents);
    for (int k = kMinShownScale; k <= kMaxShownScale; ++k) {
      loss.to_zero.push_back(sample.zeroed_share(k, *format));
      loss.overflow.push_back(sample.overflow_share(k, *format));
    }
    out.push_back(std::move(loss));
  }
  return out;
}

}  // namespace lockstep

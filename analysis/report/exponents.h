// The exponents of the values at every site of a lane, and what a loss scale would lose of the
// reference's gradients. Plain data for charts; scale_interval.h has the arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/ranges/scale_interval.h"
#include "src/record/run/run_reader.h"
#include "src/train/observer.h"

namespace lockstep {

// A histogram of the magnitudes before rounding, as computed (scaled), without the empty ends:
// counts[i] values have the exponent first + i. FP32 subnormals count at -127.
struct SiteExponents {
  int32_t site = -1;
  int first = 0;
  std::vector<uint64_t> counts;
  uint64_t zeros = 0, nonfinite = 0;
};
// `histogram`: kHistogramBins bins of one site; `zeros` of bin 0.
SiteExponents exponents_of(int32_t site, std::span<const uint64_t> histogram, uint64_t zeros);

// Over the steps that the file's histograms cover (RunFile::total_histogram_steps). Plays a lane of
// it to know the zeros among the smallest values.
class ExponentTally : public Observer {
 public:
  // `run` must outlive the object.
  ExponentTally(const RunFile& run, int lane);
  void on_step(const StepRecord& record) override;
  // For sites with any value; in the order of the sites.
  std::vector<SiteExponents> exponents() const;
  int64_t steps() const { return steps_; }  // measured ones among those covered

 private:
  const RunFile& run_;
  int lane_;
  int64_t covered_ = 0, steps_ = 0;
  std::vector<uint64_t> zeros_;  // by site id
};

// A scaled site of the reference, unscaled; for every loss scale 2^k, k from kMinShownScale on, the
// share of the nonzero values that become zero in `format` and that exceed its largest number.
struct ScaleLoss {
  SiteExponents reference;
  std::string format;
  std::vector<double> to_zero, overflow;
};
inline constexpr int kMinShownScale = -8, kMaxShownScale = 32;
// Sites where some lane has a format of 16 bits or fewer: in the narrowest such one.
// `reference`: its exponents.
std::vector<ScaleLoss> scale_losses(const RunFile& run, std::span<const SiteExponents> reference);

}  // namespace lockstep

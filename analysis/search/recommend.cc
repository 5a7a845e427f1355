// Turns the range table into a policy with its evidence.
#include "analysis/search/recommend.h"

#include <fmt/format.h>

#include "analysis/ranges/range_samples.h"
#include "src/core/text.h"

namespace lockstep {

Recommendation recommend(const RunFile& run, const std::string& format) {
  const Policy base = autocast_policy(format);
  RangeTable ranges = make_range_table(range_samples(run, base), find_format(format));
  Candidate candidate =
      candidate_of(ranges, fmt::format("exponent histograms of the fp32 lane of {}, {} steps of {}",
                                       run.path(), run.measured_steps(), run.options().model));
  return {std::move(ranges), std::move(candidate)};
}

Candidate candidate_of(const RangeTable& ranges, const std::string& evidence) {
  const std::string& format = ranges.format->name;
  std::string about = fmt::format(
      "Evidence: {}. Ranges only: in that trace no value of the layers left in {} overflows ({} "
      "octave of headroom). At loss scale 2^{}, each gradient tensor loses at most a share of "
      "{:.3g} of its energy to zero (allowed: {:g}), and of its nonzero values at most {:.3g}. Run "
      "it to see the outcome.",
      evidence, format, kHeadroomOctaves, ranges.scale_exponent, ranges.lost_energy(), kEnergyLimit,
      ranges.zeroed_share());
  if (!ranges.ignored.empty()) {
    about += fmt::format(
        " Ignored as rounding noise (largest value below 2^-{} of the layer's largest gradient): "
        "{}.",
        kNoiseOctaves, join(ranges.ignored, ", "));
  }
  return make_candidate("recommended-" + format,
                        {.format = format,
                         .fp32 = layers_out_of_range(ranges),
                         .scale = choose_scaler(ranges, autocast_policy(format))},
                        about, interval_sentence(ranges));
}

}  // namespace lockstep

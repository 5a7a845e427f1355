// Follows a fault through the network: the finding's site, then the sites that went wrong because
// of it, with what each saw in the finding's first step.
#pragma once

#include <optional>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/report/exponents.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

struct FaultLink {
  int32_t site = -1;
  std::string format;         // of the lane there; "" if not recorded
  double largest = 0;         // magnitude before rounding, as computed; infinite, NaN: not measured
  double limit = 0;           // the format's largest finite number; NaN: not recorded
  double nonfinite_rate = 0;  // of all values, after rounding
  double zeroed_rate = 0;     // of the nonzero values
  std::optional<SiteExponents> exponents = {};  // where the step has a histogram
};
struct FaultChain {
  int64_t step = 0;
  std::vector<FaultLink> links;  // the origin first
  size_t left_out = 0;           // further ones
};

inline constexpr size_t kMostLinks = 8;

// The chain of a finding that has a site.
FaultChain fault_chain(const RunFile& run, int lane, const Finding& finding);

}  // namespace lockstep

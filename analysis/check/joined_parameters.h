// Which parameters were fused or split: one of one run is some of the other, concatenated?
// The three projections of an attention as one, for example. The values say so: as many elements,
// and the same sum of squares at the start.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "analysis/pair/run_match.h"

namespace lockstep {

// Indices; one of the two lists has one.
struct JoinedParameter {
  std::vector<size_t> before, after;
};
// Of the parameters without a partner, in the order of the whole ones. `before_octaves`,
// `after_octaves`: by parameter, log2 of the root mean square at the start; NaN: all zero.
// `tolerance`: octaves.
std::vector<JoinedParameter> joined_parameters(const RunFacts& before, const RunFacts& after,
                                               const Pairing& parameters,
                                               std::span<const double> before_octaves,
                                               std::span<const double> after_octaves,
                                               double tolerance);

// The site of a parameter's stored value; -1: none.
int stored_site(const RunFacts& run, size_t parameter);

}  // namespace lockstep

// Measures how much the gradient of each weight scatters from batch to batch.
// Read from the reference lane of a run whose optimizer keeps an average of gradients,
//
//   m[t] = beta m[t-1] + gain g[t],  so  m[t] = sum of w[i] g[i],  w[i] = gain beta^(t-i)
//
// (SGD's momentum, Adam's and Lion's first average). With W1 = sum of w, W2 = sum of w^2 and
// G = sum of w |g|^2, all from recorded sums of squares,
//
//   G / W1 - |m / W1|^2  =  sum of w |g[i] - m / W1|^2 / W1
//
// is the weighted scatter of the gradients around their mean: exact algebra, so never below zero.
// For independent gradients of mean mu and covariance S, E|g|^2 = |mu|^2 + tr S and
// E|m / W1|^2 = |mu|^2 + tr S W2 / W1^2, hence
//
//   tr S  =  (G / W1 - |m / W1|^2) / (1 - W2 / W1^2)
//
// without bias. With gain 1, beta constant and many steps, W2 / W1^2 = (1 - beta) / (1 + beta).
// Where the mean drifts within the average's memory, 1 / (1 - beta) steps, the drift counts as
// scatter: the estimate is then too large. Batches that come again (a capture's) scatter around the
// mean of those few. Knows nothing of formats.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

struct GradientNoise {
  std::string weight = {}, layer = {};
  double share = 1;              // tr S / E|g|^2, 0..1
  std::string why_assumed = {};  // why it is taken to be 1; "": it was measured
  bool is_measured() const { return why_assumed.empty(); }
};

// An average of gradients: the weights of its first and of every later gradient.
struct AverageOfGradients {
  double beta = 0, first_gain = 1, gain = 1;
};

// tr S / E|g|^2 from |g|^2 and |m|^2 of every step, the first ones of the average. Means over the
// steps in which it holds enough gradients. Returns: the share, or `why_assumed` if the numbers
// cannot be of such an average (a decay or a clip came between), are too few, or vanish.
GradientNoise noise_of(std::span<const double> gradient_sq, std::span<const double> average_sq,
                       const AverageOfGradients& average);

// A row for each weight that has a gradient, in the graph's order. `step`: of the run.
std::vector<GradientNoise> gradient_noise(const RunFile& run, const Graph& step);

}  // namespace lockstep

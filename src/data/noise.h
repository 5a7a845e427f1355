// Where does a model's own noise come from?
// An input whose path begins with "noise" (the sampling of a variational autoencoder) is no data:
// it is drawn anew in every step, standard normal, from counters; equal in all lanes.
#pragma once

#include "src/core/random.h"
#include "src/data/dataset.h"
#include "src/graph/ir.h"

namespace lockstep {

// The n-th standard normal number of a stream (which must serve nothing else).
// Source: G. Marsaglia, T. A. Bray, SIAM Review 6, 1964 (the polar method).
double normal_number(const RandomStream& random, uint64_t n);

// Adds the graph's noise inputs to a batch.
void add_noise(const Graph& graph, uint64_t seed, uint64_t draw, Batch& batch);

}  // namespace lockstep

// A model's own noise. An input whose path begins with "noise" (the sampling of a variational
// autoencoder) is not read from the data: it is drawn anew in every step from counters, standard
// normal and equal in all lanes.
#pragma once

#include "src/core/random.h"
#include "src/data/dataset.h"
#include "src/graph/ir.h"

namespace lockstep {

// The n-th standard normal number of a stream (which must have no other use).
// Source: G. Marsaglia, T. A. Bray, SIAM Review 6, 1964 (the polar method).
double normal_number(const RandomStream& random, uint64_t n);

// Adds the graph's noise inputs to a batch.
void add_noise(const Graph& graph, uint64_t seed, uint64_t draw, Batch& batch);

}  // namespace lockstep

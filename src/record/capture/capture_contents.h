// The contents of a capture file, each kind read by a source file of its own. For
// src/record/capture/capture_*.cc only.
#pragma once

#include "src/capture/capture.h"
#include "src/record/hdf5/stored_fields.h"

namespace lockstep {

// capture_graphs.cc: graphs, their constants, initial parameters and buffers.
void read_graphs(const StoredFields& root, Capture& capture);
// Values of all parameters and buffers of all graphs, from groups `params` and `buffers` in `at`.
void read_values(const StoredFields& at, const Capture& capture, Tensors& values);
void read_buffers(const StoredFields& at, const Capture& capture, Tensors& values);

// capture_optimizer.cc
void read_optimizer(const StoredFields& root, Capture& capture);
// Reads the optimizer states in group `at`, by parameter.
void read_states(const StoredFields& at, const Capture& capture, CapturedState& state);
// The numbers of every group from the text attribute "hyper" of `at`, in the row's own names.
std::vector<HyperValues> read_hyper(const StoredFields& at, const Capture& capture);

// capture_steps.cc
void read_amp(const StoredFields& root, Capture& capture);
void read_steps(const StoredFields& root, Capture& capture);

// capture_gate_steps.cc. Reads the gradients (or the weights after a step) in group `at`, by
// parameter.
Tensors read_gradients(const StoredFields& at, const Capture& capture, Container container);
void read_verify(const StoredFields& root, Capture& capture);

// capture_part.cc. What is there of the run besides the capture; with `contents`, its tensors.
void read_part(const StoredFields& root, bool contents, Capture& capture);

// "000012" -> 12; -1 if the text is not such a number.
int64_t number_of(const std::string& name);

}  // namespace lockstep

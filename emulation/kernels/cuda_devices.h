// The devices of the `cuda` engine, for code that is not of its kernels (emulation/kernels/cuda).
#pragma once

#include <string>

#include "emulation/accumulator/accumulator.h"

namespace lockstep {

// Why products cannot run on a GPU here, or "": built without CUDA, no GPU, no cuBLAS, ...
std::string why_no_gpu();
// Why the models' kernels cannot run on a GPU here, or "".
std::string why_no_model_kernels();
// The hardware row of the GPU. Requires: there is one.
const Hardware& gpu_hardware();
// The hardware row of the GPU that `cuda-host` models on the host.
const Hardware& stand_in_hardware();

// True if the engine forms sums of these factors under this accumulator on its device. Formats may
// be null, as in GemmArgs.
bool is_cuda_sum(const Accumulator& accumulator, const Format* a, const Format* b);

// True if a kernel on a device forms sums of these factors under this accumulator, with the bits of
// a software lane.
bool is_modelled_sum(const Accumulator& accumulator, const Format* a, const Format* b);

// The GPU and its library if a lane has been given it, for the record of a run; else "none".
std::string used_gpu();
// What the devices have done since the program began, a sentence per device; "" if nothing.
std::string cuda_summary();

}  // namespace lockstep

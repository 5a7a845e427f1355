// Tells whether there is a GPU.
#pragma once

#include <string>

namespace lockstep::cuda {

// Why there is none for this program, or "". Defined in builds with CUDA only.
std::string why_no_gpu();

}  // namespace lockstep::cuda

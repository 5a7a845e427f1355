// Tensors as files of NumPy's format .npy, version 1.0: FP32, FP64 or 32-bit integers in C order.
// Reads only what it writes. Source: numpy.lib.format, "Format Version 1.0".
#pragma once

#include <string>

#include "src/core/tensor.h"

namespace lockstep {

std::string npy_bytes(const Tensor& tensor);
// Throws: InputError that names `path`.
Tensor tensor_from_npy(const std::string& bytes, const std::string& path);

}  // namespace lockstep

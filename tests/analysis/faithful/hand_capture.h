// A capture made in memory, whose "PyTorch" is a few loops in double written for this test: one
// linear layer y = x w^T and the mean squared error, one SGD step with momentum, a loss scaler, and
// the same step under BF16 autocast. A buffer of the model keeps the last y.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/capture/capture.h"

namespace lockstep::testing {

inline constexpr const char* kWeight = "fc.weight";
inline constexpr const char* kSeen = "seen";

// The layer's step, computed in the given precision.
enum class Hand : uint8_t { kDouble, kBf16 };
struct HandStep {
  double loss = 0;
  std::vector<double> y;         // (N,O)
  std::vector<double> gradient;  // of the weight (O,I)
};
HandStep hand_step(Hand precision);

// Steps 0 to 2 of the run; 0 is a verify step and 2 overflows.
Capture hand_capture();

// Makes the recorded optimizer step again from the (changed) FP32 gradient of the capture.
void step_again(Capture& capture);

}  // namespace lockstep::testing

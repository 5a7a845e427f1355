// The steps of a dot product, and the registers after each.
// For people (`lockstep dot`): every step that an accumulator rounds, in its own order and with its
// own registers. trace_dot (dot.h) collects them. Tensor cores have BlockTrace (aligned_block.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct DotStep {
  std::string target;   // the register that takes the result: "acc", "even", "lost"
  std::string formula;  // of registers and factors: "acc + a[0] * b[0]"
  double exact;         // its value; if the step rounds, a double other than `rounded`
  double rounded;       // the register's new value
};
using DotSteps = std::vector<DotStep>;

// Adds a step unless `steps` is null.
template <typename Formula>
void note_step(DotSteps* steps, const char* target, const Formula& formula, double exact,
               double rounded) {
  if (steps != nullptr) steps->push_back({target, formula(), exact, rounded});
}

// "a[3] * b[3]".
inline std::string product_text(int64_t k) {
  const std::string at = "[" + std::to_string(k) + "]";
  return "a" + at + " * b" + at;
}

}  // namespace lockstep

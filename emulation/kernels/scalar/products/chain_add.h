// Adds a few terms one after the other.
// A chain: acc = round(acc + x) in the accumulator's format, with terms in the order that the
// kernel declares, held in T. For sums whose terms are scattered (windows, repeated indices); long
// sums have the shape of emulation/kernels/reduction.h.
#pragma once

#include <type_traits>

#include "emulation/accumulator/accumulator.h"
#include "emulation/accumulator/dot.h"
#include "emulation/accumulator/fast_round.h"

namespace lockstep {

// Calls body(add), where add(acc, x) -> T is the accumulator's addition. It is chosen once, so that
// the loops in `body` are compiled for each kind.
template <typename T, typename Body>
void with_chain_add(const Accumulator& accumulator, Body body) {
  const Format& format = *accumulator.format;
  if (std::is_same_v<T, float> ? format.is_fp32() : format.is_fp64()) {
    body([](T acc, T x) { return canonical_nan(acc + x); });
  } else if (FastRound::covers(format)) {
    const FastRound round(format);
    body([round](T acc, T x) { return static_cast<T>(round.add(acc, x)); });
  } else {
    body([&](T acc, T x) { return static_cast<T>(accumulate_add(accumulator, acc, x)); });
  }
}

}  // namespace lockstep

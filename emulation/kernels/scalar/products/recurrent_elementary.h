// One time step of an LSTM or GRU cell as a chain of separate ops, each of which rounds its result,
// as in ATen's cells on a CPU. The formulas are those of recurrent.h, in ATen's order.
//
// R: rounded to formats.low, C: to formats.c, H: to formats.h
//   LSTM  gates = R(x_gates + h_gates);  i, f, o = R(sigmoid), g = R(tanh)
//         c = C(C(f c_prev) + R(i g)),  h = C(o C(tanh c))            (h is rounded by the caller)
//   GRU   r, z = R(sigmoid(R(x_gates + h_gates))),  n = R(tanh(R(x_gates + R(q r))))
//         h = H(H(H(h_prev - n) z) + n)
// Backward, each op's gradient is rounded to its operand's format:
//   LSTM  do = R(dh tanh c),  dc += C(C(dh o) (1 - tanh(c)^2)),  di = R(R(dc) g), dg = R(R(dc) i),
//         df = R(dc c_prev),  dc_prev = C(dc f)
//   GRU   direct = H(dh z),  dz = R(dh H(h_prev - n)),  dn = R(R(dh) + R(-direct)),
//         dn' = R(dn (1 - n^2)),  dq = R(dn' r),  dr = R(dn' q)
//   and through each sigmoid R(d (1 - s) s), through tanh R(d (1 - t^2))
#pragma once

#include "emulation/kernels/args/recurrent_rounding.h"
#include "emulation/kernels/inner_math.h"
#include "emulation/kernels/scalar/products/recurrent.h"

namespace lockstep {

// Rounds arrays; counts the op's roundings, see InnerMath::round.
template <typename T>
struct PartRounder {
  const InnerMath<T>& math;
  uint64_t part = 0;
  void operator()(T* x, int64_t count, const Format* format) {
    math.round(x, count, ++part, format);
  }
};

template <typename T>
void elementary_lstm_step(const RecurrentStep<T>& step, const CellFormats& formats,
                          PartRounder<T>& round);
template <typename T>
void elementary_gru_step(const RecurrentStep<T>& step, const CellFormats& formats,
                         PartRounder<T>& round);
template <typename T>
void elementary_lstm_step_backward(const RecurrentStepBackward<T>& step, const CellFormats& formats,
                                   PartRounder<T>& round);
template <typename T>
void elementary_gru_step_backward(const RecurrentStepBackward<T>& step, const CellFormats& formats,
                                  PartRounder<T>& round);

}  // namespace lockstep

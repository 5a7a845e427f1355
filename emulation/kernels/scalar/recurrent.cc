// Elements are independent; rows of the batch are spread over the threads.
#include "emulation/kernels/scalar/recurrent.h"

#include "emulation/math/exp_log.h"
#include "emulation/math/functions.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

// body(state element, index of the element's first gate, H) for every element of the batch.
template <typename Body>
void for_states(int64_t batch, int64_t hidden, int64_t gates, Body body) {
  parallel_chunks(batch, row_grain(gates * hidden), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t j = 0; j < hidden; ++j) body(n * hidden + j, n * gates * hidden + j);
    }
  });
}
constexpr int64_t kLstmGates = 4, kGruGates = 3;

}  // namespace

template <typename T>
void lstm_step(const RecurrentStep<T>& s) {
  const int64_t h = s.hidden;
  for_states(s.batch, h, kLstmGates, [&](int64_t at, int64_t gate) {
    const auto sum = [&](int64_t k) { return s.x_gates[gate + k * h] + s.h_gates[gate + k * h]; };
    const T i = lockstep_sigmoid<T>(sum(0)), f = lockstep_sigmoid<T>(sum(1));
    const T g = lockstep_tanh<T>(sum(2)), o = lockstep_sigmoid<T>(sum(3));
    const T c = f * s.c_prev[at] + i * g;
    s.saved[gate] = i, s.saved[gate + h] = f, s.saved[gate + 2 * h] = g, s.saved[gate + 3 * h] = o;
    s.c[at] = c;
    s.h[at] = o * lockstep_tanh<T>(c);
  });
}

template <typename T>
void lstm_step_backward(const RecurrentStepBackward<T>& s) {
  const int64_t h = s.hidden;
  for_states(s.batch, h, kLstmGates, [&](int64_t at, int64_t gate) {
    const T i = s.saved[gate], f = s.saved[gate + h];
    const T g = s.saved[gate + 2 * h], o = s.saved[gate + 3 * h];
    const T tanh_c = lockstep_tanh<T>(s.c[at]), dh = s.dh[at];
    const T dc = s.dc[at] + dh * o * (T(1) - tanh_c * tanh_c);
    s.dx_gates[gate] = dc * g * (i * (T(1) - i));
    s.dx_gates[gate + h] = dc * s.c_prev[at] * (f * (T(1) - f));
    s.dx_gates[gate + 2 * h] = dc * i * (T(1) - g * g);
    s.dx_gates[gate + 3 * h] = dh * tanh_c * (o * (T(1) - o));
    s.dc[at] = dc * f;
  });
}

template <typename T>
void gru_step(const RecurrentStep<T>& s) {
  const int64_t h = s.hidden;
  for_states(s.batch, h, kGruGates, [&](int64_t at, int64_t gate) {
    const int64_t saved = gate + at / h * h;  // rows of 4 saved values, rows of 3 gates
    const T r = lockstep_sigmoid<T>(s.x_gates[gate] + s.h_gates[gate]);
    const T z = lockstep_sigmoid<T>(s.x_gates[gate + h] + s.h_gates[gate + h]);
    const T q = s.h_gates[gate + 2 * h];
    const T n = lockstep_tanh<T>(s.x_gates[gate + 2 * h] + r * q);
    s.saved[saved] = r, s.saved[saved + h] = z;
    s.saved[saved + 2 * h] = n, s.saved[saved + 3 * h] = q;
    s.h[at] = (s.h_prev[at] - n) * z + n;
  });
}

template <typename T>
void gru_step_backward(const RecurrentStepBackward<T>& s) {
  const int64_t h = s.hidden;
  for_states(s.batch, h, kGruGates, [&](int64_t at, int64_t gate) {
    const int64_t saved = gate + at / h * h;
    const T r = s.saved[saved], z = s.saved[saved + h];
    const T n = s.saved[saved + 2 * h], q = s.saved[saved + 3 * h];
    const T dh = s.dh[at];
    const T dn = dh * (T(1) - z) * (T(1) - n * n);
    const T dr = dn * q * (r * (T(1) - r));
    const T dz = dh * (s.h_prev[at] - n) * (z * (T(1) - z));
    s.dx_gates[gate] = s.dh_gates[gate] = dr;
    s.dx_gates[gate + h] = s.dh_gates[gate + h] = dz;
    s.dx_gates[gate + 2 * h] = dn;
    s.dh_gates[gate + 2 * h] = dn * r;
    s.dh_direct[at] = dh * z;
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                      \
  template void lstm_step(const RecurrentStep<T>&);                  \
  template void gru_step(const RecurrentStep<T>&);                   \
  template void lstm_step_backward(const RecurrentStepBackward<T>&); \
  template void gru_step_backward(const RecurrentStepBackward<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

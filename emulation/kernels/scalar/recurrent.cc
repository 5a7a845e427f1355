// Rows of the batch are spread over the threads. A row's sigmoids and tanh are calls of the kernel
// set, so that they run in vectors where it has them.
#include "emulation/kernels/scalar/recurrent.h"

#include <vector>

#include "emulation/kernels/kernel_set.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

// body(the row's first state element, its first gate, room for H numbers) for every row.
template <typename T, typename Body>
void for_rows(int64_t batch, int64_t hidden, int64_t gates, Body body) {
  parallel_chunks(batch, row_grain(gates * hidden), [&](int64_t begin, int64_t end) {
    std::vector<T> room(static_cast<size_t>(hidden));
    for (int64_t n = begin; n < end; ++n) body(n * hidden, n * gates * hidden, room.data());
  });
}
constexpr int64_t kLstmGates = 4, kGruGates = 3;

template <typename T>
void sigmoid(const Kernels<T>& kernels, T* x, int64_t count) {
  kernels.unary(Unary::kSigmoid, {}, x, x, count);
}
template <typename T>
void tanh(const Kernels<T>& kernels, const T* x, T* y, int64_t count) {
  kernels.unary(Unary::kTanh, {}, x, y, count);
}

}  // namespace

template <typename T>
void lstm_step(const Kernels<T>& kernels, const RecurrentStep<T>& s) {
  const int64_t size = s.hidden;
  for_rows<T>(s.batch, size, kLstmGates, [&](int64_t at, int64_t gate, T*) {
    T *i = s.saved + gate, *f = i + size, *g = f + size, *o = g + size;
    kernels.add(s.x_gates + gate, s.h_gates + gate, i, kLstmGates * size);
    sigmoid(kernels, i, 2 * size);
    tanh(kernels, g, g, size);
    sigmoid(kernels, o, size);
    const T* c_prev = s.c_prev + at;
    T *c = s.c + at, *h = s.h + at;
    for (int64_t j = 0; j < size; ++j) c[j] = f[j] * c_prev[j] + i[j] * g[j];
    tanh(kernels, c, h, size);
    for (int64_t j = 0; j < size; ++j) h[j] = o[j] * h[j];
  });
}

template <typename T>
void lstm_step_backward(const Kernels<T>& kernels, const RecurrentStepBackward<T>& s) {
  const int64_t size = s.hidden;
  for_rows<T>(s.batch, size, kLstmGates, [&](int64_t at, int64_t gate, T* tanh_c) {
    const T *i = s.saved + gate, *f = i + size, *g = f + size, *o = g + size;
    T *di = s.dx_gates + gate, *df = di + size, *dg = df + size, *d_o = dg + size;
    const T *dh = s.dh + at, *c_prev = s.c_prev + at;
    T* dc_row = s.dc + at;
    tanh(kernels, s.c + at, tanh_c, size);
    for (int64_t j = 0; j < size; ++j) {
      const T dc = dc_row[j] + dh[j] * o[j] * (T(1) - tanh_c[j] * tanh_c[j]);
      di[j] = dc * g[j] * (i[j] * (T(1) - i[j]));
      df[j] = dc * c_prev[j] * (f[j] * (T(1) - f[j]));
      dg[j] = dc * i[j] * (T(1) - g[j] * g[j]);
      d_o[j] = dh[j] * tanh_c[j] * (o[j] * (T(1) - o[j]));
      dc_row[j] = dc * f[j];
    }
  });
}

template <typename T>
void gru_step(const Kernels<T>& kernels, const RecurrentStep<T>& s) {
  const int64_t size = s.hidden;
  for_rows<T>(s.batch, size, kGruGates, [&](int64_t at, int64_t gate, T*) {
    // Rows of 4 saved values, rows of 3 gates.
    T *r = s.saved + kSavedGates * at, *z = r + size, *n = z + size, *q = n + size;
    const T *x_n = s.x_gates + gate + 2 * size, *h_n = s.h_gates + gate + 2 * size;
    kernels.add(s.x_gates + gate, s.h_gates + gate, r, 2 * size);
    sigmoid(kernels, r, 2 * size);
    for (int64_t j = 0; j < size; ++j) {
      q[j] = h_n[j];
      n[j] = x_n[j] + r[j] * q[j];
    }
    tanh(kernels, n, n, size);
    const T* h_prev = s.h_prev + at;
    T* h = s.h + at;
    for (int64_t j = 0; j < size; ++j) h[j] = (h_prev[j] - n[j]) * z[j] + n[j];
  });
}

template <typename T>
void gru_step_backward(const RecurrentStepBackward<T>& s) {
  const int64_t size = s.hidden;
  for_rows<T>(s.batch, size, kGruGates, [&](int64_t at, int64_t gate, T*) {
    const T *r = s.saved + kSavedGates * at, *z = r + size, *n = z + size, *q = n + size;
    const T *dh = s.dh + at, *h_prev = s.h_prev + at;
    T *dx = s.dx_gates + gate, *dh_gates = s.dh_gates + gate, *direct = s.dh_direct + at;
    for (int64_t j = 0; j < size; ++j) {
      const T dn = dh[j] * (T(1) - z[j]) * (T(1) - n[j] * n[j]);
      dx[j] = dh_gates[j] = dn * q[j] * (r[j] * (T(1) - r[j]));
      dx[size + j] = dh_gates[size + j] = dh[j] * (h_prev[j] - n[j]) * (z[j] * (T(1) - z[j]));
      dx[2 * size + j] = dn;
      dh_gates[2 * size + j] = dn * r[j];
      direct[j] = dh[j] * z[j];
    }
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                                         \
  template void lstm_step(const Kernels<T>&, const RecurrentStep<T>&);                  \
  template void gru_step(const Kernels<T>&, const RecurrentStep<T>&);                   \
  template void lstm_step_backward(const Kernels<T>&, const RecurrentStepBackward<T>&); \
  template void gru_step_backward(const RecurrentStepBackward<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

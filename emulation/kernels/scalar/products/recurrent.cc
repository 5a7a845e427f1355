// Rows of the batch are spread over the threads. A row's sigmoids and tanh are calls of the kernel
// set, so that they run in vectors where it has them.
#include "emulation/kernels/scalar/products/recurrent.h"

#include "emulation/kernels/kernel_set.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

template <typename T>
T* moved(T* x, int64_t count) {
  return x == nullptr ? nullptr : x + count;
}

template <typename T>
RecurrentStep<T> row_of(const RecurrentStep<T>& step, int64_t gates, int64_t n) {
  const int64_t state = n * step.hidden, gate = gates * state;
  return {.batch = 1,
          .hidden = step.hidden,
          .x_gates = step.x_gates + gate,
          .h_gates = step.h_gates + gate,
          .h_prev = moved(step.h_prev, state),
          .c_prev = moved(step.c_prev, state),
          .saved = step.saved + kSavedGates * state,
          .h = step.h + state,
          .c = moved(step.c, state)};
}
template <typename T>
RecurrentStepBackward<T> row_of(const RecurrentStepBackward<T>& step, int64_t gates, int64_t n) {
  const int64_t state = n * step.hidden, gate = gates * state;
  return {.batch = 1,
          .hidden = step.hidden,
          .saved = step.saved + kSavedGates * state,
          .h_prev = moved(step.h_prev, state),
          .c = moved(step.c, state),
          .c_prev = moved(step.c_prev, state),
          .dh = step.dh + state,
          .dc = moved(step.dc, state),
          .dx_gates = step.dx_gates + gate,
          .dh_gates = moved(step.dh_gates, gate),
          .dh_direct = moved(step.dh_direct, state)};
}

template <typename Step, typename Body>
void for_rows(const Step& step, int64_t gates, Body body) {
  parallel_chunks(step.batch, row_grain(gates * step.hidden), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) body(row_of(step, gates, n));
  });
}

}  // namespace

template <typename T>
void lstm_step(const Kernels<T>& kernels, const RecurrentStep<T>& step) {
  for_rows(step, kLstmGates, [&](const auto& row) { kernels.cell.lstm(kernels, row); });
}
template <typename T>
void lstm_step_backward(const Kernels<T>& kernels, const RecurrentStepBackward<T>& step) {
  for_rows(step, kLstmGates, [&](const auto& row) { kernels.cell.lstm_backward(kernels, row); });
}
template <typename T>
void gru_step(const Kernels<T>& kernels, const RecurrentStep<T>& step) {
  for_rows(step, kGruGates, [&](const auto& row) { kernels.cell.gru(kernels, row); });
}
template <typename T>
void gru_step_backward(const Kernels<T>& kernels, const RecurrentStepBackward<T>& step) {
  for_rows(step, kGruGates, [&](const auto& row) { kernels.cell.gru_backward(row); });
}

#define LOCKSTEP_INSTANTIATE(T)                                                         \
  template void lstm_step(const Kernels<T>&, const RecurrentStep<T>&);                  \
  template void gru_step(const Kernels<T>&, const RecurrentStep<T>&);                   \
  template void lstm_step_backward(const Kernels<T>&, const RecurrentStepBackward<T>&); \
  template void gru_step_backward(const Kernels<T>&, const RecurrentStepBackward<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

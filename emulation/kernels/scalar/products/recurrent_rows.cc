// The rows of cells for the baseline instruction set.
#include "emulation/kernels/scalar/products/recurrent_rows.h"

namespace lockstep {

template <typename T>
CellFunctions<T> scalar_cell_functions() {
  return {.lstm = [](const Kernels<T>& kernels,
                     const RecurrentStep<T>& row) { recurrent_rows::lstm(kernels, row); },
          .lstm_backward =
              [](const Kernels<T>& kernels, const RecurrentStepBackward<T>& row) {
                recurrent_rows::lstm_backward(kernels, row);
              },
          .gru = [](const Kernels<T>& kernels,
                    const RecurrentStep<T>& row) { recurrent_rows::gru(kernels, row); },
          .gru_backward =
              [](const RecurrentStepBackward<T>& row) { recurrent_rows::gru_backward(row); }};
}

template CellFunctions<float> scalar_cell_functions();
template CellFunctions<double> scalar_cell_functions();

}  // namespace lockstep

// Everything inside is time-major, (T,N,...); x and y are transposed on entry and exit if the batch
// comes first.
#include "emulation/kernels/scalar/products/recurrence.h"
#include "emulation/kernels/scalar/products/recurrent.h"

namespace lockstep {
namespace {

template <typename T>
class Forward : public Recurrence<T, RecurrentForward<T>> {
 public:
  using Recurrence<T, RecurrentForward<T>>::Recurrence;

  void run() {
    const T* x = this->time_major(a_.x, e_.in, rooms_.x);
    for (int64_t layer = 0; layer < e_.layers; ++layer) {
      T* y = this->room_for(rooms_.y[layer % 2], this->between());
      for (int64_t d = 0; d < e_.directions; ++d) run_direction(layer, d, x, y);
      if (layer + 1 < e_.layers) make_input(layer + 1, y);
      x = y;
    }
    this->from_time_major(x, e_.width(), a_.y);
  }

 private:
  using Recurrence<T, RecurrentForward<T>>::a_;
  using Recurrence<T, RecurrentForward<T>>::e_;
  using Recurrence<T, RecurrentForward<T>>::how_;
  using Recurrence<T, RecurrentForward<T>>::formats_;

  // The input of a layer from the output x of the one below it.
  void make_input(int64_t layer, T* x) {
    const int64_t count = this->between();
    if (e_.drops()) {
      a_.math.kernels->masked_scale(x, a_.masks + (layer - 1) * count,
                                    a_.math.scale_of_dropout(e_.dropout), x, count);
      this->round_(x, count, formats_.h);
    }
    if (formats_.h != formats_.low) this->round_(x, count, formats_.low);
    if (e_.drops()) std::copy_n(x, count, a_.layer_inputs + (layer - 1) * count);
  }

  void add_rows(const T* b, int64_t rows, int64_t n, T* y) const {
    for (int64_t row = 0; row < rows; ++row) {
      a_.math.kernels->add(y + row * n, b, y + row * n, n);
    }
  }

  // Only in low precision; otherwise each bias is added to its own product.
  bool adds_one_bias() const {
    return how_.one_bias && e_.is_lstm && e_.has_bias && !InnerMath<T>::is_own_format(formats_.low);
  }
  std::vector<T> one_bias(int64_t cell) {
    std::vector<T> sum(static_cast<size_t>(this->gate_rows_));
    a_.math.kernels->add(this->weight(cell, 2), this->weight(cell, 3), sum.data(),
                         this->gate_rows_);
    this->round(sum, formats_.low);
    return sum;
  }

  // One step, with its states rounded; o tanh(c) before a projection is a factor.
  void take(RecurrentStep<T>& step) {
    const int64_t count = step.batch * step.hidden;
    if (how_.elementary) {
      if (!e_.is_lstm) return elementary_gru_step(step, formats_, this->round_);
      elementary_lstm_step(step, formats_, this->round_);
      return this->round_(step.h, count, formats_.low);
    }
    e_.is_lstm ? lstm_step(*a_.math.kernels, step) : gru_step(*a_.math.kernels, step);
    this->round_(step.h, count, formats_.h);
    if (e_.is_lstm) this->round_(step.c, count, formats_.c);
  }

  void run_direction(int64_t layer, int64_t d, const T* x, T* y) {
    const int64_t cell = layer * e_.directions + d, gates = this->gate_rows_;
    T* saved_gates = a_.gates + cell * e_.time * kSavedGates * this->cell_size();
    // A step's sums may stand where its gates will be saved, if there are as many.
    const int64_t sums = e_.rows() * gates;
    T* x_gates = e_.gates == kSavedGates ? saved_gates : this->room_for(rooms_.x_gates, sums);
    this->multiply(false, x, true, this->weight(cell, 0), e_.rows(), gates, e_.layer_in(layer),
                   x_gates);
    const bool own_biases = e_.has_bias && !adds_one_bias();
    if (how_.elementary && e_.separate_bias && layer == 0) {
      this->round_(x_gates, sums, formats_.low);
    }
    if (own_biases) add_rows(this->weight(cell, 2), e_.rows(), gates, x_gates);
    if (adds_one_bias()) add_rows(one_bias(cell).data(), e_.rows(), gates, x_gates);
    if (how_.elementary) this->round_(x_gates, sums, formats_.low);

    this->walk_rows(*this, [&](Forward& walk, const RowRange& rows) {
      walk.take_steps(cell, d, rows, x_gates, own_biases, y);
    });
  }

  // All steps of a direction for some rows of the batch.
  void take_steps(int64_t cell, int64_t d, const RowRange& rows, const T* x_gates, bool own_biases,
                  T* y) {
    const int64_t gates = this->gate_rows_, state = rows.count * e_.state;
    // Where these rows begin in arrays of all steps: their first elements at time 0.
    const int64_t first_state = cell * e_.time * this->state_size() + rows.first * e_.state;
    const int64_t first_cell = cell * e_.time * this->cell_size() + rows.first * e_.hidden;
    StepFactor<T> w_hh = this->step_factor(cell, 1, gates, e_.state), w_hr;
    if (e_.projects) w_hr = this->step_factor(cell, e_.projection(), e_.state, e_.hidden);
    std::vector<T> h_gates(static_cast<size_t>(rows.count * gates)), factor;
    T* hidden = a_.hidden + first_state;
    T* wide = e_.projects ? a_.unprojected + first_cell : hidden;
    T* cells = e_.is_lstm ? a_.cell_states + first_cell : nullptr;
    T* saved_gates = a_.gates + first_cell * kSavedGates;
    const int64_t ends_state = (cell * e_.batch + rows.first) * e_.state;
    const int64_t ends_cell = (cell * e_.batch + rows.first) * e_.hidden;
    RecurrentStep<T> step{.batch = rows.count, .hidden = e_.hidden};
    step.h_gates = h_gates.data();
    step.h_prev = a_.h0 + ends_state;
    step.c_prev = e_.is_lstm ? a_.c0 + ends_cell : nullptr;
    for (int64_t s = 0; s < e_.time; ++s) {
      const int64_t t = this->time_of(d, s);
      this->multiply(this->low(step.h_prev, state, factor), true, w_hh, rows.count, gates, e_.state,
                     h_gates.data());
      if (own_biases) add_rows(this->weight(cell, 3), rows.count, gates, h_gates.data());
      if (how_.elementary) this->round(h_gates, formats_.low);
      step.x_gates = x_gates + (t * e_.batch + rows.first) * gates;
      step.saved = saved_gates + t * this->cell_size() * kSavedGates;
      step.h = wide + t * this->cell_size();
      step.c = e_.is_lstm ? cells + t * this->cell_size() : nullptr;
      take(step);
      T* h = hidden + t * this->state_size();
      if (e_.projects) {
        this->multiply(step.h, true, w_hr, rows.count, e_.state, e_.hidden, h);
        this->round_(h, state, formats_.h);
      }
      for (int64_t n = 0; n < rows.count; ++n) {
        std::copy_n(h + n * e_.state, e_.state,
                    &y[(t * e_.batch + rows.first + n) * e_.width() + d * e_.state]);
      }
      step.h_prev = h, step.c_prev = step.c;
    }
    std::copy_n(step.h_prev, state, a_.h_n + ends_state);
    if (e_.is_lstm) std::copy_n(step.c_prev, rows.count * e_.hidden, a_.c_n + ends_cell);
  }

  // Not for take_steps(): on the calling thread, the object of a group of rows has the same rooms
  // as this one, which still needs them.
  struct Rooms {
    Workspace<T> x, y[2], x_gates;
  };
  static Rooms& rooms_of_thread() {
    static thread_local Rooms rooms;
    return rooms;
  }
  Rooms own_rooms_;
  Rooms& rooms_ = this->keeps_rooms() ? rooms_of_thread() : own_rooms_;
};

}  // namespace

template <typename T>
void recurrent_forward(const RecurrentForward<T>& args) {
  Forward<T>(args).run();
}
template void recurrent_forward(const RecurrentForward<float>&);
template void recurrent_forward(const RecurrentForward<double>&);

}  // namespace lockstep

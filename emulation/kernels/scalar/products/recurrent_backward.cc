// Backpropagation through time, from the last layer and step to the first. Time-major inside, like
// the forward pass.
#include "emulation/kernels/scalar/products/recurrence.h"
#include "emulation/kernels/scalar/products/recurrent.h"

namespace lockstep {
namespace {

template <typename T>
class Backward : public Recurrence<T, RecurrentBackward<T>> {
 public:
  using Recurrence<T, RecurrentBackward<T>>::Recurrence;

  void run() {
    const T* d = arriving();
    for (int64_t layer = e_.layers - 1; layer >= 0; --layer) {
      T* dx = this->room_for(rooms_.d[layer % 2], e_.rows() * e_.layer_in(layer));
      const T* x = input_of(layer);
      for (int64_t dir = 0; dir < e_.directions; ++dir) run_direction(layer, dir, x, d, dx);
      if (layer > 0 && e_.drops()) {
        const int64_t count = this->between();
        a_.math.kernels->masked_scale(dx, a_.masks + (layer - 1) * count,
                                      a_.math.scale_of_dropout(e_.dropout), dx, count);
        this->round_(dx, count, formats_.h);
      }
      d = dx;
    }
    this->from_time_major(d, e_.in, a_.dx);
  }

 private:
  using Recurrence<T, RecurrentBackward<T>>::a_;
  using Recurrence<T, RecurrentBackward<T>>::e_;
  using Recurrence<T, RecurrentBackward<T>>::how_;
  using Recurrence<T, RecurrentBackward<T>>::formats_;

  // The gradient of the last layer's output.
  const T* arriving() {
    Workspace<T>& room = rooms_.d[e_.layers % 2];
    if (a_.dy != nullptr) return this->time_major(a_.dy, e_.width(), room);
    T* none = this->room_for(room, this->between());
    std::fill_n(none, this->between(), T(0));
    return none;
  }
  // The layer's input, as the forward pass stored it.
  const T* input_of(int64_t layer) {
    if (layer == 0) return this->time_major(a_.x, e_.in, rooms_.x);
    const int64_t count = this->between();
    if (e_.drops()) return a_.layer_inputs + (layer - 1) * count;
    T* x = this->room_for(rooms_.x, count);
    for (int64_t d = 0; d < e_.directions; ++d) {
      const T* h = hidden_of((layer - 1) * e_.directions + d);
      for (int64_t row = 0; row < e_.rows(); ++row) {
        std::copy_n(h + row * e_.state, e_.state, &x[row * e_.width() + d * e_.state]);
      }
    }
    if (formats_.h != formats_.low) this->round_(x, count, formats_.low);
    return x;
  }
  const T* hidden_of(int64_t cell) const { return a_.hidden + cell * e_.rows() * e_.state; }
  // The hidden state before every time step of a direction, (T,N,P).
  T* hidden_before(int64_t cell, int64_t d) {
    const int64_t size = this->state_size();
    T* before = this->room_for(rooms_.h_before, e_.time * size);
    for (int64_t s = 0; s < e_.time; ++s) {
      const T* from =
          s == 0 ? a_.h0 + cell * size : hidden_of(cell) + this->time_of(d, s - 1) * size;
      std::copy_n(from, size, before + this->time_of(d, s) * size);
    }
    return before;
  }
  static std::vector<T> start_of(const T* gradient, int64_t first, int64_t size) {
    if (gradient == nullptr) return std::vector<T>(static_cast<size_t>(size));
    return std::vector<T>(gradient + first, gradient + first + size);
  }
  T* gradient(int64_t cell, size_t k) const { return a_.dweights[this->at(cell, k)]; }
  void column_sums(const T* d, int64_t rows, T* out) const {
    a_.math.kernels->channel_sum(d, out, rows, this->gate_rows_, 1, *a_.math.reduce_accumulator);
  }
  void add(const T* x, std::vector<T>& y) const {
    a_.math.kernels->add(y.data(), x, y.data(), static_cast<int64_t>(y.size()));
  }

  // dw over all time steps of a direction. `sums(first row, rows, out)` gives the sum for some
  // rows. An elementary cell rounds each step's sum and adds them up, rounded to `total`, from the
  // last step to the first.
  template <typename Sums>
  void sum_over_steps(int64_t d, int64_t count, T* dw, const Format* total, Sums sums) {
    if (!how_.elementary) return sums(0, e_.rows(), dw);
    std::vector<T> part(static_cast<size_t>(count));
    for (int64_t s = e_.time - 1; s >= 0; --s) {
      const bool first = s == e_.time - 1;
      sums(this->time_of(d, s) * e_.batch, e_.batch, first ? dw : part.data());
      this->round_(first ? dw : part.data(), count, formats_.low);
      if (first) continue;
      a_.math.kernels->add(dw, part.data(), dw, count);
      this->round_(dw, count, total);
    }
  }

  void run_direction(int64_t layer, int64_t d, const T* x, const T* dy, T* dx) {
    const int64_t cell = layer * e_.directions + d, gates = this->gate_rows_, p = e_.state;
    const T* h_before = hidden_before(cell, d);
    T* dx_gates = this->room_for(rooms_.dx_gates, e_.rows() * gates);
    T* dh_gates = e_.is_lstm ? dx_gates : this->room_for(rooms_.dh_gates, e_.rows() * gates);
    // With a projection: all dh, (T,N,P).
    std::vector<T> dh_steps(e_.projects ? static_cast<size_t>(e_.rows() * p) : 0);
    this->walk_rows(*this, [&](Backward& walk, const RowRange& rows) {
      walk.take_steps(cell, d, rows, dy, h_before, {dx_gates, dh_gates, dh_steps.data()});
    });

    const int64_t in = e_.layer_in(layer), rows = e_.rows();
    std::vector<T> storage;
    const T* factor = this->low(h_before, rows * p, storage);
    this->multiply(true, dx_gates, false, x, gates, in, rows, gradient(cell, 0));
    sum_over_steps(d, gates * p, gradient(cell, 1), formats_.low,
                   [&](int64_t first, int64_t count, T* out) {
                     this->multiply(true, dh_gates + first * gates, false, factor + first * p,
                                    gates, p, count, out);
                   });
    if (e_.has_bias) {
      const T* db_ih = gradient(cell, 2);
      column_sums(dx_gates, rows, gradient(cell, 2));
      sum_over_steps(d, gates, gradient(cell, 3), formats_.low,
                     [&](int64_t first, int64_t count, T* out) {
                       const bool is_same = dh_gates == dx_gates && count == rows;
                       if (is_same) return void(std::copy_n(db_ih, gates, out));
                       column_sums(dh_gates + first * gates, count, out);
                     });
    }
    if (e_.projects) {
      const T* wide = a_.unprojected + cell * e_.time * this->cell_size();
      // ATen multiplies by the transposed view of w_hr, whose cast autocast does not keep. So every
      // step has its own cast, and their gradients are added in FP32.
      sum_over_steps(d, p * e_.hidden, gradient(cell, e_.projection()), /*total=*/nullptr,
                     [&](int64_t first, int64_t count, T* out) {
                       this->multiply(true, dh_steps.data() + first * p, false,
                                      wide + first * e_.hidden, p, e_.hidden, count, out);
                     });
    }
    T* mine = d == 0 ? dx : this->room_for(rooms_.other_dx, rows * in);
    this->multiply(false, dx_gates, false, this->weight(cell, 0), rows, in, gates, mine);
    this->round_(mine, rows * in, formats_.low);
    if (d == 0) return;
    a_.math.kernels->add(dx, mine, dx, rows * in);
    // The first layer's dx is the op's output: PyTorch's CPU code adds it up in x's own format.
    if (layer > 0 || a_.cells == RecurrentCells::kFused) {
      this->round_(dx, rows * in, formats_.h);
    }
  }

  // What the steps leave for the sums over them, (T,N,...).
  struct StepGradients {
    T *dx_gates, *dh_gates;  // equal for an LSTM
    T* dh;                   // only with a projection
  };

  // All steps of a direction for some rows of the batch, from the last to the first.
  void take_steps(int64_t cell, int64_t d, const RowRange& rows, const T* dy, const T* h_before,
                  const StepGradients& out) {
    const int64_t gates = this->gate_rows_, p = e_.state;
    const int64_t state = rows.count * p, cell_size = rows.count * e_.hidden;
    // Where these rows begin: in arrays of all steps, their first elements at time 0; in arrays of
    // the states before and after them.
    const int64_t first_cell = cell * e_.time * this->cell_size() + rows.first * e_.hidden;
    const int64_t ends_state = (cell * e_.batch + rows.first) * p;
    const int64_t ends_cell = (cell * e_.batch + rows.first) * e_.hidden;
    const T* cells = e_.is_lstm ? a_.cell_states + first_cell : nullptr;
    const T* saved_gates = a_.gates + first_cell * kSavedGates;
    StepFactor<T> w_hh = this->step_factor(cell, 1, gates, p), w_hr;
    if (e_.projects) w_hr = this->step_factor(cell, e_.projection(), p, e_.hidden);
    std::vector<T> dh = start_of(a_.dh_n, ends_state, state);
    std::vector<T> dc = start_of(a_.dc_n, ends_cell, cell_size);
    std::vector<T> direct(e_.is_lstm ? 0 : dh.size()), arriving(dh.size());
    // With a projection: the gradient of one step's o tanh(c).
    std::vector<T> dwide(e_.projects ? static_cast<size_t>(cell_size) : 0);
    RecurrentStepBackward<T> step{.batch = rows.count, .hidden = e_.hidden};
    step.dh = e_.projects ? dwide.data() : dh.data();
    step.dc = dc.data(), step.dh_direct = direct.data();
    for (int64_t s = e_.time - 1; s >= 0; --s) {
      const int64_t t = this->time_of(d, s);
      const int64_t row = t * e_.batch + rows.first;
      for (int64_t n = 0; n < rows.count; ++n) {
        std::copy_n(dy + (row + n) * e_.width() + d * p, p, &arriving[n * p]);
      }
      // The part that bypassed the product last step joins dy first, as in autograd's order.
      if (how_.elementary && !e_.is_lstm && s != e_.time - 1) {
        add(direct.data(), arriving);
        this->round(arriving, formats_.h);
      }
      add(arriving.data(), dh);
      if (how_.elementary) this->round(dh, formats_.h);
      if (e_.projects) {
        if (!how_.elementary) this->round(dh, formats_.h);
        std::copy(dh.begin(), dh.end(), out.dh + row * p);
        this->multiply(dh.data(), false, w_hr, rows.count, e_.hidden, p, dwide.data());
        this->round(dwide, formats_.low);
      }
      step.saved = saved_gates + t * this->cell_size() * kSavedGates;
      step.h_prev = h_before + row * p;
      if (e_.is_lstm) {
        step.c = cells + t * this->cell_size();
        step.c_prev =
            s == 0 ? a_.c0 + ends_cell : cells + this->time_of(d, s - 1) * this->cell_size();
      }
      step.dx_gates = out.dx_gates + row * gates;
      step.dh_gates = out.dh_gates + row * gates;
      take(step);
      this->multiply(step.dh_gates, false, w_hh, rows.count, p, gates, dh.data());
      if (how_.elementary) {
        this->round(dh, formats_.low);
        continue;
      }
      if (!e_.is_lstm) add(direct.data(), dh);
      if (how_.state_gradients) this->round(dh, formats_.h);
      if (e_.is_lstm && how_.state_gradients) this->round(dc, formats_.c);
    }
    if (how_.elementary && !e_.is_lstm) add(direct.data(), dh);
    std::copy(dh.begin(), dh.end(), a_.dh0 + ends_state);
    if (e_.is_lstm) std::copy(dc.begin(), dc.end(), a_.dc0 + ends_cell);
  }

  void take(RecurrentStepBackward<T>& step) {
    if (how_.elementary) {
      return e_.is_lstm ? elementary_lstm_step_backward(step, formats_, this->round_)
                        : elementary_gru_step_backward(step, formats_, this->round_);
    }
    const int64_t count = step.batch * this->gate_rows_;
    e_.is_lstm ? lstm_step_backward(*a_.math.kernels, step)
               : gru_step_backward(*a_.math.kernels, step);
    this->round_(step.dx_gates, count, formats_.low);
    if (!e_.is_lstm) this->round_(step.dh_gates, count, formats_.low);
  }

  // Not for take_steps(): on the calling thread, the object of a group of rows has the same rooms
  // as this one, which still needs them.
  struct Rooms {
    Workspace<T> x, d[2], other_dx, dx_gates, dh_gates, h_before;
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
void recurrent_backward(const RecurrentBackward<T>& args) {
  Backward<T>(args).run();
}
template void recurrent_backward(const RecurrentBackward<float>&);
template void recurrent_backward(const RecurrentBackward<double>&);

}  // namespace lockstep

// Backpropagation through time, from the last layer and step to the first. Time-major inside, like
// the forward pass.
#include "emulation/kernels/scalar/recurrence.h"
#include "emulation/kernels/scalar/recurrent.h"

namespace lockstep {
namespace {

template <typename T>
class Backward : public Recurrence<T, RecurrentBackward<T>> {
 public:
  using Recurrence<T, RecurrentBackward<T>>::Recurrence;

  void run() {
    std::vector<T> d(static_cast<size_t>(this->between()));
    if (a_.dy != nullptr) d = this->time_major(a_.dy, e_.width());
    for (int64_t layer = e_.layers - 1; layer >= 0; --layer) {
      std::vector<T> dx(static_cast<size_t>(e_.rows() * e_.layer_in(layer)));
      const std::vector<T> x = input_of(layer);
      for (int64_t dir = 0; dir < e_.directions; ++dir) run_direction(layer, dir, x, d, dx);
      if (layer > 0 && e_.drops()) {
        const int64_t count = this->between();
        a_.math.kernels->masked_scale(dx.data(), a_.masks + (layer - 1) * count,
                                      a_.math.scale_of_dropout(e_.dropout), dx.data(), count);
        this->round(dx, formats_.h);
      }
      d = std::move(dx);
    }
    this->from_time_major(d, e_.in, a_.dx);
  }

 private:
  using Recurrence<T, RecurrentBackward<T>>::a_;
  using Recurrence<T, RecurrentBackward<T>>::e_;
  using Recurrence<T, RecurrentBackward<T>>::how_;
  using Recurrence<T, RecurrentBackward<T>>::formats_;

  // The layer's input, as the forward pass stored it.
  std::vector<T> input_of(int64_t layer) {
    if (layer == 0) return this->time_major(a_.x, e_.in);
    const int64_t count = this->between();
    if (e_.drops()) {
      const T* x = a_.layer_inputs + (layer - 1) * count;
      return std::vector<T>(x, x + count);
    }
    std::vector<T> x(static_cast<size_t>(count));
    for (int64_t d = 0; d < e_.directions; ++d) {
      const T* h = hidden_of((layer - 1) * e_.directions + d);
      for (int64_t row = 0; row < e_.rows(); ++row) {
        std::copy_n(h + row * e_.state, e_.state, &x[row * e_.width() + d * e_.state]);
      }
    }
    if (formats_.h != formats_.low) this->round(x, formats_.low);
    return x;
  }
  const T* hidden_of(int64_t cell) const { return a_.hidden + cell * e_.rows() * e_.state; }
  // The state before every time step of a direction, (T, size).
  std::vector<T> previous(const T* initial, const T* states, int64_t size, int64_t d) const {
    std::vector<T> before(static_cast<size_t>(e_.time * size));
    for (int64_t s = 0; s < e_.time; ++s) {
      const T* from = s == 0 ? initial : states + this->time_of(d, s - 1) * size;
      std::copy_n(from, size, &before[this->time_of(d, s) * size]);
    }
    return before;
  }
  static std::vector<T> start_of(const T* gradient, int64_t cell, int64_t size) {
    if (gradient == nullptr) return std::vector<T>(static_cast<size_t>(size));
    return std::vector<T>(gradient + cell * size, gradient + (cell + 1) * size);
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

  void run_direction(int64_t layer, int64_t d, const std::vector<T>& x, const std::vector<T>& dy,
                     std::vector<T>& dx) {
    const int64_t cell = layer * e_.directions + d, gates = this->gate_rows_;
    const int64_t state = this->state_size(), cell_size = this->cell_size(), p = e_.state;
    const std::vector<T> h_before = previous(a_.h0 + cell * state, hidden_of(cell), state, d);
    const T* cells = e_.is_lstm ? a_.cell_states + cell * e_.time * cell_size : nullptr;
    std::vector<T> c_before;
    if (e_.is_lstm) c_before = previous(a_.c0 + cell * cell_size, cells, cell_size, d);
    const T* saved_gates = a_.gates + cell * e_.time * kSavedGates * cell_size;

    std::vector<T> dx_gates(static_cast<size_t>(e_.rows() * gates));
    std::vector<T> own(e_.is_lstm ? 0 : dx_gates.size());
    T* dh_gates = e_.is_lstm ? dx_gates.data() : own.data();
    std::vector<T> dh = start_of(a_.dh_n, cell, state), dc = start_of(a_.dc_n, cell, cell_size);
    std::vector<T> direct(e_.is_lstm ? 0 : dh.size()), arriving(dh.size());
    // With a projection: all dh, (T,N,P), and the gradient of one step's o tanh(c).
    std::vector<T> dh_steps(e_.projects ? static_cast<size_t>(e_.rows() * p) : 0);
    std::vector<T> dwide(e_.projects ? static_cast<size_t>(cell_size) : 0);
    RecurrentStepBackward<T> step{.batch = e_.batch, .hidden = e_.hidden};
    step.dh = e_.projects ? dwide.data() : dh.data();
    step.dc = dc.data(), step.dh_direct = direct.data();
    for (int64_t s = e_.time - 1; s >= 0; --s) {
      const int64_t t = this->time_of(d, s);
      for (int64_t n = 0; n < e_.batch; ++n) {
        std::copy_n(&dy[(t * e_.batch + n) * e_.width() + d * p], p, &arriving[n * p]);
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
        std::copy(dh.begin(), dh.end(), &dh_steps[t * state]);
        this->product(false, dh.data(), false, this->weight(cell, e_.projection()), e_.batch,
                      e_.hidden, p, dwide.data());
        this->round(dwide, formats_.low);
      }
      step.saved = saved_gates + t * cell_size * kSavedGates;
      step.h_prev = &h_before[t * state];
      step.c = e_.is_lstm ? cells + t * cell_size : nullptr;
      step.c_prev = e_.is_lstm ? &c_before[t * cell_size] : nullptr;
      step.dx_gates = &dx_gates[t * e_.batch * gates];
      step.dh_gates = dh_gates + t * e_.batch * gates;
      take(step);
      this->product(false, step.dh_gates, false, this->weight(cell, 1), e_.batch, p, gates,
                    dh.data());
      if (how_.elementary) {
        this->round(dh, formats_.low);
        continue;
      }
      if (!e_.is_lstm) add(direct.data(), dh);
      if (how_.state_gradients) this->round(dh, formats_.h);
      if (e_.is_lstm && how_.state_gradients) this->round(dc, formats_.c);
    }
    if (how_.elementary && !e_.is_lstm) add(direct.data(), dh);
    std::copy(dh.begin(), dh.end(), a_.dh0 + cell * state);
    if (e_.is_lstm) std::copy(dc.begin(), dc.end(), a_.dc0 + cell * cell_size);

    const int64_t in = e_.layer_in(layer), rows = e_.rows();
    std::vector<T> storage;
    const T* factor = this->low(h_before.data(), rows * p, storage);
    this->product(true, dx_gates.data(), false, x.data(), gates, in, rows, gradient(cell, 0));
    sum_over_steps(d, gates * p, gradient(cell, 1), formats_.low,
                   [&](int64_t first, int64_t count, T* out) {
                     this->product(true, dh_gates + first * gates, false, factor + first * p, gates,
                                   p, count, out);
                   });
    if (e_.has_bias) {
      column_sums(dx_gates.data(), rows, gradient(cell, 2));
      sum_over_steps(d, gates, gradient(cell, 3), formats_.low,
                     [&](int64_t first, int64_t count, T* out) {
                       column_sums(dh_gates + first * gates, count, out);
                     });
    }
    if (e_.projects) {
      const T* wide = a_.unprojected + cell * e_.time * cell_size;
      // ATen multiplies by the transposed view of w_hr, whose cast autocast does not keep. So every
      // step has its own cast, and their gradients are added in FP32.
      sum_over_steps(d, p * e_.hidden, gradient(cell, e_.projection()), /*total=*/nullptr,
                     [&](int64_t first, int64_t count, T* out) {
                       this->product(true, dh_steps.data() + first * p, false,
                                     wide + first * e_.hidden, p, e_.hidden, count, out);
                     });
    }
    std::vector<T> other(d == 0 ? 0 : dx.size());
    std::vector<T>& mine = d == 0 ? dx : other;
    this->product(false, dx_gates.data(), false, this->weight(cell, 0), rows, in, gates,
                  mine.data());
    this->round(mine, formats_.low);
    if (d == 0) return;
    add(other.data(), dx);
    // The first layer's dx is the op's output: PyTorch's CPU code adds it up in x's own format.
    if (layer > 0 || a_.cells == RecurrentCells::kFused) this->round(dx, formats_.h);
  }

  void take(RecurrentStepBackward<T>& step) {
    if (how_.elementary) {
      return e_.is_lstm ? elementary_lstm_step_backward(step, formats_, this->round_)
                        : elementary_gru_step_backward(step, formats_, this->round_);
    }
    const int64_t count = e_.batch * this->gate_rows_;
    e_.is_lstm ? lstm_step_backward(*a_.math.kernels, step) : gru_step_backward(step);
    this->round_(step.dx_gates, count, formats_.low);
    if (!e_.is_lstm) this->round_(step.dh_gates, count, formats_.low);
  }
};

}  // namespace

template <typename T>
void recurrent_backward(const RecurrentBackward<T>& args) {
  Backward<T>(args).run();
}
template void recurrent_backward(const RecurrentBackward<float>&);
template void recurrent_backward(const RecurrentBackward<double>&);

}  // namespace lockstep

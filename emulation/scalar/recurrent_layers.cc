// Everything inside is time-major, (T,N,...); x and y are turned at the border where the batch
// comes first.
#include "emulation/scalar/recurrent_layers.h"

#include <algorithm>

#include "emulation/scalar/recurrent.h"
#include "emulation/scalar/select.h"
#include "emulation/scalar/strided_copy.h"

namespace lockstep {
namespace {

// (A,B,C) -> (B,A,C)
template <typename T>
void turn(const T* x, int64_t a, int64_t b, int64_t c, T* y) {
  strided_copy<T>({{b, c, a * c}, {a, b * c, c}, {c, 1, 1}}, x, y);
}

// Forward and backward share the walk over layers, directions and steps, and its products.
template <typename T, typename Args>
class Recurrence {
 public:
  explicit Recurrence(const Args& args)
      : a_(args), e_(args.extents), gate_rows_(e_.gates * e_.hidden) {}

 protected:
  std::vector<T> time_major(const T* x, int64_t width) const {
    std::vector<T> turned(static_cast<size_t>(e_.rows() * width));
    if (e_.batch_first) {
      turn(x, e_.batch, e_.time, width, turned.data());
    } else {
      std::copy_n(x, turned.size(), turned.data());
    }
    return turned;
  }
  void from_time_major(const std::vector<T>& x, int64_t width, T* y) const {
    if (e_.batch_first) {
      turn(x.data(), e_.time, e_.batch, width, y);
    } else {
      std::copy(x.begin(), x.end(), y);
    }
  }
  void round(std::vector<T>& x) { round(x.data(), static_cast<int64_t>(x.size())); }
  void round(T* x, int64_t count) { a_.math.round(x, count, ++part_); }

  // C (m,n) = op(a) op(b); b row-major as stored. Factors made inside are narrowed where needed.
  void product(bool transpose_a, const T* a, bool transpose_b, const T* b, int64_t m, int64_t n,
               int64_t k, T* c) {
    GemmArgs<T> gemm{
        .transpose_a = transpose_a, .transpose_b = transpose_b, .m = m, .n = n, .k = k};
    std::vector<T> a_storage, b_storage;
    gemm.a = a_.math.as_factor(a, m * k, a_storage), gemm.lda = transpose_a ? m : k;
    gemm.b = a_.math.as_factor(b, k * n, b_storage), gemm.ldb = transpose_b ? k : n;
    gemm.c = c, gemm.ldc = n;
    gemm.accumulator = a_.math.gemm_accumulator;
    gemm.a_format = a_.math.a_format, gemm.b_format = a_.math.b_format;
    a_.math.kernels->gemm(gemm);
  }
  const T* weight(int64_t cell, size_t k) const { return a_.weights[at(cell, k)]; }
  size_t at(int64_t cell, size_t k) const { return static_cast<size_t>(cell) * e_.per_cell() + k; }
  // Step s of a direction is time step s, or counts from the end.
  int64_t time_of(int64_t direction, int64_t s) const {
    return direction == 0 ? s : e_.time - 1 - s;
  }
  int64_t between() const { return e_.rows() * e_.width(); }  // elements between two layers
  int64_t state_size() const { return e_.batch * e_.state; }
  int64_t cell_size() const { return e_.batch * e_.hidden; }

  const Args& a_;
  const RecurrentExtents& e_;
  const int64_t gate_rows_;  // gates * H
  uint64_t part_ = 0;        // roundings so far, see InnerMath::round
};

template <typename T>
class Forward : public Recurrence<T, RecurrentForward<T>> {
 public:
  using Recurrence<T, RecurrentForward<T>>::Recurrence;

  void run() {
    std::vector<T> x = this->time_major(a_.x, e_.in);
    for (int64_t layer = 0; layer < e_.layers; ++layer) {
      if (layer > 0 && e_.drops()) x = dropped(layer, x);
      std::vector<T> y(static_cast<size_t>(this->between()));
      for (int64_t d = 0; d < e_.directions; ++d) run_direction(layer, d, x, y);
      x = std::move(y);
    }
    this->from_time_major(x, e_.width(), a_.y);
  }

 private:
  using Recurrence<T, RecurrentForward<T>>::a_;
  using Recurrence<T, RecurrentForward<T>>::e_;

  std::vector<T> dropped(int64_t layer, const std::vector<T>& below) {
    const int64_t count = this->between();
    std::vector<T> x(below.size());
    scalar_masked_scale(below.data(), a_.masks + (layer - 1) * count,
                        a_.math.scale_of_dropout(e_.dropout), x.data(), count);
    this->round(x);
    std::copy(x.begin(), x.end(), a_.layer_inputs + (layer - 1) * count);
    return x;
  }

  void add_rows(const T* b, int64_t rows, int64_t n, T* y) const {
    for (int64_t row = 0; row < rows; ++row) {
      a_.math.kernels->add(y + row * n, b, y + row * n, n);
    }
  }

  // Both biases of an LSTM cell as one, rounded once, as oneDNN's cell takes them. Only in low
  // precision: elsewhere each is added to its own product.
  bool adds_one_bias() const {
    return e_.is_lstm && e_.has_bias && !InnerMath<T>::is_own_format(a_.math.rounding.format);
  }
  std::vector<T> one_bias(int64_t cell) {
    std::vector<T> sum(static_cast<size_t>(this->gate_rows_));
    a_.math.kernels->add(this->weight(cell, 2), this->weight(cell, 3), sum.data(),
                         this->gate_rows_);
    this->round(sum);
    return sum;
  }

  void run_direction(int64_t layer, int64_t d, const std::vector<T>& x, std::vector<T>& y) {
    const int64_t cell = layer * e_.directions + d, gates = this->gate_rows_;
    const int64_t state = this->state_size(), cell_size = this->cell_size();
    std::vector<T> x_gates(static_cast<size_t>(e_.rows() * gates));
    this->product(false, x.data(), true, this->weight(cell, 0), e_.rows(), gates,
                  e_.layer_in(layer), x_gates.data());
    const bool own_biases = e_.has_bias && !adds_one_bias();
    if (own_biases) add_rows(this->weight(cell, 2), e_.rows(), gates, x_gates.data());
    if (adds_one_bias()) add_rows(one_bias(cell).data(), e_.rows(), gates, x_gates.data());

    std::vector<T> h_gates(static_cast<size_t>(e_.batch * gates));
    T* hidden = a_.hidden + cell * e_.time * state;
    T* wide = e_.projects ? a_.unprojected + cell * e_.time * cell_size : hidden;
    T* cells = e_.is_lstm ? a_.cell_states + cell * e_.time * cell_size : nullptr;
    T* saved_gates = a_.gates + cell * e_.time * kSavedGates * cell_size;
    RecurrentStep<T> step{.batch = e_.batch, .hidden = e_.hidden};
    step.h_gates = h_gates.data();
    step.h_prev = a_.h0 + cell * state;
    step.c_prev = e_.is_lstm ? a_.c0 + cell * cell_size : nullptr;
    for (int64_t s = 0; s < e_.time; ++s) {
      const int64_t t = this->time_of(d, s);
      this->product(false, step.h_prev, true, this->weight(cell, 1), e_.batch, gates, e_.state,
                    h_gates.data());
      if (own_biases) add_rows(this->weight(cell, 3), e_.batch, gates, h_gates.data());
      step.x_gates = x_gates.data() + t * e_.batch * gates;
      step.saved = saved_gates + t * cell_size * kSavedGates;
      step.h = wide + t * cell_size;
      step.c = e_.is_lstm ? cells + t * cell_size : nullptr;
      e_.is_lstm ? lstm_step(step) : gru_step(step);
      this->round(step.h, cell_size);
      if (e_.is_lstm) this->round(step.c, cell_size);
      T* h = hidden + t * state;
      if (e_.projects) {
        this->product(false, step.h, true, this->weight(cell, e_.projection()), e_.batch, e_.state,
                      e_.hidden, h);
        this->round(h, state);
      }
      for (int64_t n = 0; n < e_.batch; ++n) {
        std::copy_n(h + n * e_.state, e_.state, &y[(t * e_.batch + n) * e_.width() + d * e_.state]);
      }
      step.h_prev = h, step.c_prev = step.c;
    }
    std::copy_n(step.h_prev, state, a_.h_n + cell * state);
    if (e_.is_lstm) std::copy_n(step.c_prev, cell_size, a_.c_n + cell * cell_size);
  }
};

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
        scalar_masked_scale(dx.data(), a_.masks + (layer - 1) * count,
                            a_.math.scale_of_dropout(e_.dropout), dx.data(), count);
        this->round(dx);
      }
      d = std::move(dx);
    }
    this->from_time_major(d, e_.in, a_.dx);
  }

 private:
  using Recurrence<T, RecurrentBackward<T>>::a_;
  using Recurrence<T, RecurrentBackward<T>>::e_;

  // What the layer read, as the forward pass left it.
  std::vector<T> input_of(int64_t layer) const {
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
  void column_sums(const T* d, T* out) const {
    a_.math.kernels->channel_sum(d, out, e_.rows(), this->gate_rows_, 1,
                                 *a_.math.reduce_accumulator);
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
    std::vector<T> direct(e_.is_lstm ? 0 : dh.size());
    // With a projection: all dh, (T,N,P), and the gradient of one step's o tanh(c).
    std::vector<T> dh_steps(e_.projects ? static_cast<size_t>(e_.rows() * p) : 0);
    std::vector<T> dwide(e_.projects ? static_cast<size_t>(cell_size) : 0);
    RecurrentStepBackward<T> step{.batch = e_.batch, .hidden = e_.hidden};
    step.dh = e_.projects ? dwide.data() : dh.data();
    step.dc = dc.data(), step.dh_direct = direct.data();
    for (int64_t s = e_.time - 1; s >= 0; --s) {
      const int64_t t = this->time_of(d, s);
      for (int64_t n = 0; n < e_.batch; ++n) {
        T* row = &dh[static_cast<size_t>(n * p)];
        a_.math.kernels->add(row, &dy[(t * e_.batch + n) * e_.width() + d * p], row, p);
      }
      if (e_.projects) {
        this->round(dh);
        std::copy(dh.begin(), dh.end(), &dh_steps[t * state]);
        this->product(false, dh.data(), false, this->weight(cell, e_.projection()), e_.batch,
                      e_.hidden, p, dwide.data());
        this->round(dwide);
      }
      step.saved = saved_gates + t * cell_size * kSavedGates;
      step.h_prev = &h_before[t * state];
      step.c = e_.is_lstm ? cells + t * cell_size : nullptr;
      step.c_prev = e_.is_lstm ? &c_before[t * cell_size] : nullptr;
      step.dx_gates = &dx_gates[t * e_.batch * gates];
      step.dh_gates = dh_gates + t * e_.batch * gates;
      e_.is_lstm ? lstm_step_backward(step) : gru_step_backward(step);
      this->round(step.dx_gates, e_.batch * gates);
      if (!e_.is_lstm) this->round(step.dh_gates, e_.batch * gates);
      this->product(false, step.dh_gates, false, this->weight(cell, 1), e_.batch, p, gates,
                    dh.data());
      if (!e_.is_lstm) a_.math.kernels->add(dh.data(), direct.data(), dh.data(), state);
      this->round(dh);
      if (e_.is_lstm) this->round(dc);
    }
    std::copy(dh.begin(), dh.end(), a_.dh0 + cell * state);
    if (e_.is_lstm) std::copy(dc.begin(), dc.end(), a_.dc0 + cell * cell_size);

    const int64_t in = e_.layer_in(layer), rows = e_.rows();
    this->product(true, dx_gates.data(), false, x.data(), gates, in, rows, gradient(cell, 0));
    this->product(true, dh_gates, false, h_before.data(), gates, p, rows, gradient(cell, 1));
    if (e_.has_bias) {
      column_sums(dx_gates.data(), gradient(cell, 2));
      column_sums(dh_gates, gradient(cell, 3));
    }
    if (e_.projects) {
      this->product(true, dh_steps.data(), false, a_.unprojected + cell * e_.time * cell_size, p,
                    e_.hidden, rows, gradient(cell, e_.projection()));
    }
    std::vector<T> other(d == 0 ? 0 : dx.size());
    std::vector<T>& mine = d == 0 ? dx : other;
    this->product(false, dx_gates.data(), false, this->weight(cell, 0), rows, in, gates,
                  mine.data());
    this->round(mine);
    if (d == 0) return;
    a_.math.kernels->add(dx.data(), other.data(), dx.data(), rows * in);
    this->round(dx);
  }
};

}  // namespace

template <typename T>
void recurrent_forward(const RecurrentForward<T>& args) {
  Forward<T>(args).run();
}
template <typename T>
void recurrent_backward(const RecurrentBackward<T>& args) {
  Backward<T>(args).run();
}

#define LOCKSTEP_INSTANTIATE(T)                                \
  template void recurrent_forward(const RecurrentForward<T>&); \
  template void recurrent_backward(const RecurrentBackward<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

// The kernels of lstm and gru: which product, cell step and rounding comes when. Everything inside
// is time-major, (T,N,...); x and y are turned at the op's border where the batch comes first.
#include "emulation/scalar/recurrent.h"

#include <algorithm>

#include "src/graph/ops/inner_rounding.h"
#include "src/graph/ops/recurrent_layout.h"

namespace lockstep {
namespace {

// (A,B,C) -> (B,A,C)
template <typename T>
std::vector<T> turned(const T* x, int64_t a, int64_t b, int64_t c) {
  std::vector<T> y(static_cast<size_t>(a * b * c));
  for (int64_t i = 0; i < a; ++i) {
    for (int64_t j = 0; j < b; ++j) std::copy_n(x + (i * b + j) * c, c, &y[(j * a + i) * c]);
  }
  return y;
}

// Forward and backward share the walk over layers, directions and steps, and its products.
template <typename T>
class Recurrence {
 public:
  Recurrence(const OpCall& call, const RecurrentLayout& layout)
      : call_(call),
        l_(layout),
        rows_(layout.time * layout.batch),
        width_(layout.directions * layout.hidden),
        gates_(layout.gates * layout.hidden) {}

  void forward() {
    std::vector<T> x = time_major(0, l_.in);
    for (int64_t layer = 0; layer < l_.layers; ++layer) {
      if (layer > 0) x = input_of(layer, x);
      std::vector<T> y(static_cast<size_t>(rows_ * width_));
      for (int64_t d = 0; d < l_.directions; ++d) forward_direction(layer, d, x, y);
      x = std::move(y);
    }
    if (l_.batch_first) x = turned(x.data(), l_.time, l_.batch, width_);
    std::copy(x.begin(), x.end(), output<T>(call_, 0));
  }

  void backward() {
    size_t next = l_.operands() + l_.saved_count();
    const auto arriving = [&](std::string_view name) {
      return bool_attribute(call_.node, name, false) ? static_cast<int>(next++) : -1;
    };
    const int dy = arriving("has_dy");
    dh_n_ = arriving("has_dh");
    dc_n_ = l_.is_lstm ? arriving("has_dc") : -1;
    std::vector<T> d = dy >= 0 ? time_major(static_cast<size_t>(dy), width_)
                               : std::vector<T>(static_cast<size_t>(rows_ * width_));
    for (int64_t layer = l_.layers - 1; layer >= 0; --layer) {
      std::vector<T> dx(static_cast<size_t>(rows_ * l_.layer_in(layer)));
      const std::vector<T> x = saved_input(layer);
      for (int64_t dir = 0; dir < l_.directions; ++dir) backward_direction(layer, dir, x, d, dx);
      if (layer > 0 && l_.drops()) {
        const int64_t count = rows_ * width_;
        apply_mask(dx.data(), saved<int32_t>(l_.masks_at()) + (layer - 1) * count,
                   dropout_scale<T>(l_.dropout), dx.data(), count);
        round(dx);
      }
      d = std::move(dx);
    }
    if (l_.batch_first) d = turned(d.data(), l_.time, l_.batch, l_.in);
    std::copy(d.begin(), d.end(), output<T>(call_, 0));
  }

 private:
  // --- values ---
  std::vector<T> time_major(size_t operand, int64_t width) const {
    const T* x = input<T>(call_, operand);
    if (l_.batch_first) return turned(x, l_.batch, l_.time, width);
    return std::vector<T>(x, x + rows_ * width);
  }
  template <typename U>
  U* saving(size_t k) const {  // forward
    return output<U>(call_, 1 + l_.states() + k);
  }
  template <typename U>
  const U* saved(size_t k) const {  // backward
    return input<U>(call_, l_.operands() + k);
  }
  void round(std::vector<T>& x) { round(x.data(), static_cast<int64_t>(x.size())); }
  void round(T* x, int64_t count) { round_inner(call_, x, count, ++part_); }

  // C (m,n) = op(a) op(b); b row-major as stored. Factors made inside are narrowed where needed.
  void product(bool transpose_a, const T* a, bool transpose_b, const T* b, int64_t m, int64_t n,
               int64_t k, T* c) {
    GemmArgs<T> gemm{
        .transpose_a = transpose_a, .transpose_b = transpose_b, .m = m, .n = n, .k = k};
    const Format* format = factor_format(call_, 0);
    std::vector<T> a_storage, b_storage;
    gemm.a = as_factor(call_, format, a, m * k, a_storage), gemm.lda = transpose_a ? m : k;
    gemm.b = as_factor(call_, format, b, k * n, b_storage), gemm.ldb = transpose_b ? k : n;
    gemm.c = c, gemm.ldc = n;
    gemm.accumulator = &call_.gemm_accumulator;
    gemm.a_format = format, gemm.b_format = factor_format(call_, l_.first_weight());
    call_.kernels.of<T>().gemm(gemm);
  }
  void add_rows(const T* b, int64_t rows, int64_t n, T* y) const {
    for (int64_t row = 0; row < rows; ++row) {
      call_.kernels.of<T>().add(y + row * n, b, y + row * n, n);
    }
  }
  const T* weight(int64_t cell, size_t k) const { return input<T>(call_, l_.weight(cell, k)); }
  // Step s of a direction is time step s, or counts from the end.
  int64_t time_of(int64_t direction, int64_t s) const {
    return direction == 0 ? s : l_.time - 1 - s;
  }

  // --- forward ---
  // What layer > 0 reads: y of the layer below, after dropout.
  std::vector<T> input_of(int64_t layer, const std::vector<T>& below) {
    if (!l_.drops()) return below;
    const int64_t count = rows_ * width_;
    int32_t* mask = saving<int32_t>(l_.masks_at()) + (layer - 1) * count;
    draw_inner_mask(call_.random, l_.dropout, static_cast<uint32_t>(layer - 1), mask, count);
    std::vector<T> x(below.size());
    apply_mask(below.data(), mask, dropout_scale<T>(l_.dropout), x.data(), count);
    round(x);
    std::copy(x.begin(), x.end(), saving<T>(l_.inputs_at()) + (layer - 1) * count);
    return x;
  }

  void forward_direction(int64_t layer, int64_t d, const std::vector<T>& x, std::vector<T>& y) {
    const int64_t cell = layer * l_.directions + d, state = l_.state_size();
    std::vector<T> x_gates(static_cast<size_t>(rows_ * gates_));
    product(false, x.data(), true, weight(cell, 0), rows_, gates_, l_.layer_in(layer),
            x_gates.data());
    if (l_.has_bias) add_rows(weight(cell, 2), rows_, gates_, x_gates.data());

    std::vector<T> h_gates(static_cast<size_t>(l_.batch * gates_));
    T* hidden = saving<T>(l_.hidden_at()) + cell * rows_ * l_.hidden;
    T* cells = l_.is_lstm ? saving<T>(l_.cells_at()) + cell * rows_ * l_.hidden : nullptr;
    T* saved_gates = saving<T>(l_.gates_at()) + cell * rows_ * kSavedGates * l_.hidden;
    RecurrentStep<T> step{.batch = l_.batch, .hidden = l_.hidden};
    step.h_gates = h_gates.data();
    step.h_prev = input<T>(call_, 1) + cell * state;
    step.c_prev = l_.is_lstm ? input<T>(call_, 2) + cell * state : nullptr;
    for (int64_t s = 0; s < l_.time; ++s) {
      const int64_t t = time_of(d, s);
      product(false, step.h_prev, true, weight(cell, 1), l_.batch, gates_, l_.hidden,
              h_gates.data());
      if (l_.has_bias) add_rows(weight(cell, 3), l_.batch, gates_, h_gates.data());
      step.x_gates = x_gates.data() + t * l_.batch * gates_;
      step.saved = saved_gates + t * state * kSavedGates;
      step.h = hidden + t * state;
      step.c = l_.is_lstm ? cells + t * state : nullptr;
      l_.is_lstm ? lstm_step(step) : gru_step(step);
      round(step.h, state);
      if (l_.is_lstm) round(step.c, state);
      for (int64_t n = 0; n < l_.batch; ++n) {
        std::copy_n(step.h + n * l_.hidden, l_.hidden,
                    &y[(t * l_.batch + n) * width_ + d * l_.hidden]);
      }
      step.h_prev = step.h, step.c_prev = step.c;
    }
    std::copy_n(step.h_prev, state, output<T>(call_, 1) + cell * state);
    if (l_.is_lstm) std::copy_n(step.c_prev, state, output<T>(call_, 2) + cell * state);
  }

  // --- backward ---
  std::vector<T> saved_input(int64_t layer) const {
    if (layer == 0) return time_major(0, l_.in);
    const int64_t count = rows_ * width_;
    if (l_.drops()) {
      const T* x = saved<T>(l_.inputs_at()) + (layer - 1) * count;
      return std::vector<T>(x, x + count);
    }
    std::vector<T> x(static_cast<size_t>(count));
    for (int64_t d = 0; d < l_.directions; ++d) {
      const T* h = hidden_of((layer - 1) * l_.directions + d);
      for (int64_t row = 0; row < rows_; ++row) {
        std::copy_n(h + row * l_.hidden, l_.hidden, &x[row * width_ + d * l_.hidden]);
      }
    }
    return x;
  }
  const T* hidden_of(int64_t cell) const {
    return saved<T>(l_.hidden_at()) + cell * rows_ * l_.hidden;
  }
  // The state before every time step of a direction, (T,N,H).
  std::vector<T> previous(const T* initial, const T* states, int64_t d) const {
    const int64_t state = l_.state_size();
    std::vector<T> before(static_cast<size_t>(rows_ * l_.hidden));
    for (int64_t s = 0; s < l_.time; ++s) {
      const T* from = s == 0 ? initial : states + time_of(d, s - 1) * state;
      std::copy_n(from, state, &before[time_of(d, s) * state]);
    }
    return before;
  }
  std::vector<T> state_gradient(int operand, int64_t cell) const {
    const int64_t state = l_.state_size();
    if (operand < 0) return std::vector<T>(static_cast<size_t>(state));
    const T* d = input<T>(call_, static_cast<size_t>(operand)) + cell * state;
    return std::vector<T>(d, d + state);
  }

  void backward_direction(int64_t layer, int64_t d, const std::vector<T>& x,
                          const std::vector<T>& dy, std::vector<T>& dx) {
    const int64_t cell = layer * l_.directions + d, state = l_.state_size(), h = l_.hidden;
    const std::vector<T> h_before = previous(input<T>(call_, 1) + cell * state, hidden_of(cell), d);
    const T* cells = l_.is_lstm ? saved<T>(l_.cells_at()) + cell * rows_ * h : nullptr;
    std::vector<T> c_before;
    if (l_.is_lstm) c_before = previous(input<T>(call_, 2) + cell * state, cells, d);
    const T* saved_gates = saved<T>(l_.gates_at()) + cell * rows_ * kSavedGates * h;

    std::vector<T> dx_gates(static_cast<size_t>(rows_ * gates_));
    std::vector<T> own(l_.is_lstm ? 0 : dx_gates.size());
    T* dh_gates = l_.is_lstm ? dx_gates.data() : own.data();
    std::vector<T> dh = state_gradient(dh_n_, cell), dc = state_gradient(dc_n_, cell);
    std::vector<T> direct(l_.is_lstm ? 0 : dh.size());
    RecurrentStepBackward<T> step{.batch = l_.batch, .hidden = h};
    step.dh = dh.data(), step.dc = dc.data(), step.dh_direct = direct.data();
    for (int64_t s = l_.time - 1; s >= 0; --s) {
      const int64_t t = time_of(d, s);
      for (int64_t n = 0; n < l_.batch; ++n) {
        T* row = &dh[static_cast<size_t>(n * h)];
        call_.kernels.of<T>().add(row, &dy[(t * l_.batch + n) * width_ + d * h], row, h);
      }
      step.saved = saved_gates + t * state * kSavedGates;
      step.h_prev = &h_before[t * state];
      step.c = l_.is_lstm ? cells + t * state : nullptr;
      step.c_prev = l_.is_lstm ? &c_before[t * state] : nullptr;
      step.dx_gates = &dx_gates[t * l_.batch * gates_];
      step.dh_gates = dh_gates + t * l_.batch * gates_;
      l_.is_lstm ? lstm_step_backward(step) : gru_step_backward(step);
      round(step.dx_gates, l_.batch * gates_);
      if (!l_.is_lstm) round(step.dh_gates, l_.batch * gates_);
      product(false, step.dh_gates, false, weight(cell, 1), l_.batch, h, gates_, dh.data());
      if (!l_.is_lstm) call_.kernels.of<T>().add(dh.data(), direct.data(), dh.data(), state);
      round(dh);
      if (l_.is_lstm) round(dc);
    }
    std::copy(dh.begin(), dh.end(), output<T>(call_, 1) + cell * state);
    if (l_.is_lstm) std::copy(dc.begin(), dc.end(), output<T>(call_, 2) + cell * state);

    const int64_t in = l_.layer_in(layer);
    product(true, dx_gates.data(), false, x.data(), gates_, in, rows_, gradient(cell, 0));
    product(true, dh_gates, false, h_before.data(), gates_, h, rows_, gradient(cell, 1));
    if (l_.has_bias) {
      column_sums(dx_gates.data(), gradient(cell, 2));
      column_sums(dh_gates, gradient(cell, 3));
    }
    if (d == 0) {
      product(false, dx_gates.data(), false, weight(cell, 0), rows_, in, gates_, dx.data());
      round(dx);
    } else {
      std::vector<T> other(dx.size());
      product(false, dx_gates.data(), false, weight(cell, 0), rows_, in, gates_, other.data());
      round(other);
      call_.kernels.of<T>().add(dx.data(), other.data(), dx.data(), rows_ * in);
      round(dx);
    }
  }
  T* gradient(int64_t cell, size_t k) const { return output<T>(call_, l_.weight(cell, k)); }
  void column_sums(const T* d, T* out) const {
    call_.kernels.of<T>().channel_sum(d, out, rows_, gates_, 1, call_.reduce_accumulator);
  }

  const OpCall& call_;
  const RecurrentLayout& l_;
  const int64_t rows_, width_, gates_;  // T N;  D H;  gates * H
  int dh_n_ = -1, dc_n_ = -1;           // operands, -1: no such gradient
  uint64_t part_ = 0;                   // roundings so far, see round_inner
};

RecurrentLayout layout_of(const OpCall& call) {
  std::vector<TensorType> types;
  for (const Tensor* tensor : call.inputs) {
    const bool is_int = tensor->container() == Container::kI32;
    types.push_back({tensor->shape(), is_int ? ElementType::kInt : ElementType::kFloat});
  }
  return recurrent_layout(call.node, types);
}

}  // namespace

void run_recurrent(const OpCall& call) {
  const RecurrentLayout layout = layout_of(call);
  dispatch(call, [&]<typename T>(T*) { Recurrence<T>(call, layout).forward(); });
}

void run_recurrent_backward(const OpCall& call) {
  const RecurrentLayout layout = layout_of(call);
  dispatch(call, [&]<typename T>(T*) { Recurrence<T>(call, layout).backward(); });
}

}  // namespace lockstep

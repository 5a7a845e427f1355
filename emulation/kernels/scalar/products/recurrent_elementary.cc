// Every op runs over a whole (N,H) array before the next begins, so that each op has one rounding
// of an array. Gates are copied out of their rows and back.
#include "emulation/kernels/scalar/products/recurrent_elementary.h"

#include <algorithm>
#include <vector>

#include "emulation/kernels/kernel_set.h"

namespace lockstep {
namespace {

template <typename T>
class Chain {
 public:
  Chain(int64_t batch, int64_t hidden, PartRounder<T>& round)
      : batch_(batch), hidden_(hidden), round_(round) {}

  using Array = std::vector<T>;

  // y[i] = f(i), rounded.
  template <typename F>
  Array op(const Format* format, F f) {
    Array y(size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = f(i);
    round_(y.data(), static_cast<int64_t>(y.size()), format);
    return y;
  }
  // y = f(x) by the kernel set, rounded.
  Array function(const Format* format, Unary f, const T* x) {
    Array y(size());
    round_.math.kernels->unary(f, {}, x, y.data(), static_cast<int64_t>(y.size()));
    round_(y.data(), static_cast<int64_t>(y.size()), format);
    return y;
  }
  Array sigmoid_backward(const Format* format, const Array& d, const Array& s) {
    return op(format, [&](size_t i) { return d[i] * (T(1) - s[i]) * s[i]; });
  }
  Array tanh_backward(const Format* format, const Array& d, const Array& t) {
    return op(format, [&](size_t i) { return d[i] * (T(1) - t[i] * t[i]); });
  }
  // Gate k of rows of `gates` gates.
  Array gate(const T* rows, int64_t gates, int64_t k) const {
    Array y(size());
    for (int64_t n = 0; n < batch_; ++n) {
      std::copy_n(rows + (n * gates + k) * hidden_, hidden_, &y[static_cast<size_t>(n * hidden_)]);
    }
    return y;
  }
  void set_gate(const Array& y, T* rows, int64_t gates, int64_t k) const {
    for (int64_t n = 0; n < batch_; ++n) {
      std::copy_n(&y[static_cast<size_t>(n * hidden_)], hidden_, rows + (n * gates + k) * hidden_);
    }
  }

 private:
  size_t size() const { return static_cast<size_t>(batch_ * hidden_); }
  int64_t batch_, hidden_;
  PartRounder<T>& round_;
};

}  // namespace

template <typename T>
void elementary_lstm_step(const RecurrentStep<T>& s, const CellFormats& formats,
                          PartRounder<T>& round) {
  using Array = typename Chain<T>::Array;
  Chain<T> chain(s.batch, s.hidden, round);
  const auto gate = [&](int64_t k, Unary function) {
    const Array x = chain.gate(s.x_gates, kLstmGates, k), h = chain.gate(s.h_gates, kLstmGates, k);
    const Array sum = chain.op(formats.low, [&](size_t i) { return h[i] + x[i]; });
    Array y = chain.function(formats.low, function, sum.data());
    chain.set_gate(y, s.saved, kSavedGates, k);
    return y;
  };
  const Array i = gate(0, Unary::kSigmoid), f = gate(1, Unary::kSigmoid);
  const Array g = gate(2, Unary::kTanh), o = gate(3, Unary::kSigmoid);
  const Array kept = chain.op(formats.c, [&](size_t e) { return f[e] * s.c_prev[e]; });
  const Array added = chain.op(formats.low, [&](size_t e) { return i[e] * g[e]; });
  const Array c = chain.op(formats.c, [&](size_t e) { return kept[e] + added[e]; });
  const Array tanh_c = chain.function(formats.c, Unary::kTanh, c.data());
  const Array h = chain.op(formats.c, [&](size_t e) { return o[e] * tanh_c[e]; });
  std::copy(c.begin(), c.end(), s.c);
  std::copy(h.begin(), h.end(), s.h);
}

template <typename T>
void elementary_lstm_step_backward(const RecurrentStepBackward<T>& s, const CellFormats& formats,
                                   PartRounder<T>& round) {
  using Array = typename Chain<T>::Array;
  Chain<T> chain(s.batch, s.hidden, round);
  const Format *low = formats.low, *wide = formats.c;
  const auto saved = [&](int64_t k) { return chain.gate(s.saved, kSavedGates, k); };
  const Array i = saved(0), f = saved(1), g = saved(2), o = saved(3);
  const Array tanh_c = chain.function(wide, Unary::kTanh, s.c);
  const Array d_o = chain.op(low, [&](size_t e) { return s.dh[e] * tanh_c[e]; });
  const Array dtanh = chain.op(wide, [&](size_t e) { return s.dh[e] * o[e]; });
  const Array through = chain.tanh_backward(wide, dtanh, tanh_c);
  const Array dc = chain.op(wide, [&](size_t e) { return s.dc[e] + through[e]; });
  const Array dadded = chain.op(low, [&](size_t e) { return dc[e]; });
  const Array di = chain.op(low, [&](size_t e) { return dadded[e] * g[e]; });
  const Array dg = chain.op(low, [&](size_t e) { return dadded[e] * i[e]; });
  const Array df = chain.op(low, [&](size_t e) { return dc[e] * s.c_prev[e]; });
  const Array dc_prev = chain.op(wide, [&](size_t e) { return dc[e] * f[e]; });
  chain.set_gate(chain.sigmoid_backward(low, di, i), s.dx_gates, kLstmGates, 0);
  chain.set_gate(chain.sigmoid_backward(low, df, f), s.dx_gates, kLstmGates, 1);
  chain.set_gate(chain.tanh_backward(low, dg, g), s.dx_gates, kLstmGates, 2);
  chain.set_gate(chain.sigmoid_backward(low, d_o, o), s.dx_gates, kLstmGates, 3);
  std::copy(dc_prev.begin(), dc_prev.end(), s.dc);
}

template <typename T>
void elementary_gru_step(const RecurrentStep<T>& s, const CellFormats& formats,
                         PartRounder<T>& round) {
  using Array = typename Chain<T>::Array;
  Chain<T> chain(s.batch, s.hidden, round);
  const Format* low = formats.low;
  const auto x_gate = [&](int64_t k) { return chain.gate(s.x_gates, kGruGates, k); };
  const auto h_gate = [&](int64_t k) { return chain.gate(s.h_gates, kGruGates, k); };
  const auto sigmoid_gate = [&](int64_t k) {
    const Array x = x_gate(k), h = h_gate(k);
    const Array sum = chain.op(low, [&](size_t i) { return h[i] + x[i]; });
    return chain.function(low, Unary::kSigmoid, sum.data());
  };
  const Array r = sigmoid_gate(0), z = sigmoid_gate(1), q = h_gate(2), x_n = x_gate(2);
  const Array gated = chain.op(low, [&](size_t i) { return q[i] * r[i]; });
  const Array sum = chain.op(low, [&](size_t i) { return x_n[i] + gated[i]; });
  const Array n = chain.function(low, Unary::kTanh, sum.data());
  const Array apart = chain.op(formats.h, [&](size_t i) { return s.h_prev[i] - n[i]; });
  const Array kept = chain.op(formats.h, [&](size_t i) { return apart[i] * z[i]; });
  const Array h = chain.op(formats.h, [&](size_t i) { return kept[i] + n[i]; });
  chain.set_gate(r, s.saved, kSavedGates, 0);
  chain.set_gate(z, s.saved, kSavedGates, 1);
  chain.set_gate(n, s.saved, kSavedGates, 2);
  chain.set_gate(q, s.saved, kSavedGates, 3);
  std::copy(h.begin(), h.end(), s.h);
}

template <typename T>
void elementary_gru_step_backward(const RecurrentStepBackward<T>& s, const CellFormats& formats,
                                  PartRounder<T>& round) {
  using Array = typename Chain<T>::Array;
  Chain<T> chain(s.batch, s.hidden, round);
  const Format *low = formats.low, *wide = formats.h;
  const auto saved = [&](int64_t k) { return chain.gate(s.saved, kSavedGates, k); };
  const Array r = saved(0), z = saved(1), n = saved(2), q = saved(3);
  const Array apart = chain.op(wide, [&](size_t i) { return s.h_prev[i] - n[i]; });
  const Array direct = chain.op(wide, [&](size_t i) { return s.dh[i] * z[i]; });
  const Array dz_wide = chain.op(wide, [&](size_t i) { return s.dh[i] * apart[i]; });
  const Array dz = chain.op(low, [&](size_t i) { return dz_wide[i]; });
  const Array added = chain.op(low, [&](size_t i) { return s.dh[i]; });
  const Array taken = chain.op(low, [&](size_t i) { return -direct[i]; });
  const Array dn = chain.op(low, [&](size_t i) { return added[i] + taken[i]; });
  const Array dsum = chain.tanh_backward(low, dn, n);
  const Array dq = chain.op(low, [&](size_t i) { return dsum[i] * r[i]; });
  const Array dr = chain.op(low, [&](size_t i) { return dsum[i] * q[i]; });
  const Array dr_sum = chain.sigmoid_backward(low, dr, r);
  const Array dz_sum = chain.sigmoid_backward(low, dz, z);
  for (T* gates : {s.dx_gates, s.dh_gates}) {
    chain.set_gate(dr_sum, gates, kGruGates, 0);
    chain.set_gate(dz_sum, gates, kGruGates, 1);
  }
  chain.set_gate(dsum, s.dx_gates, kGruGates, 2);
  chain.set_gate(dq, s.dh_gates, kGruGates, 2);
  std::copy(direct.begin(), direct.end(), s.dh_direct);
}

#define LOCKSTEP_INSTANTIATE(T)                                                                    \
  template void elementary_lstm_step(const RecurrentStep<T>&, const CellFormats&,                  \
                                     PartRounder<T>&);                                             \
  template void elementary_gru_step(const RecurrentStep<T>&, const CellFormats&, PartRounder<T>&); \
  template void elementary_lstm_step_backward(const RecurrentStepBackward<T>&, const CellFormats&, \
                                              PartRounder<T>&);                                    \
  template void elementary_gru_step_backward(const RecurrentStepBackward<T>&, const CellFormats&,  \
                                             PartRounder<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

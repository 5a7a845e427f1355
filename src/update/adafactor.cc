// Both libraries' steps, operation by operation: each result is rounded to the format of the
// arithmetic. Means and norms are sums in FP64, rounded once.
#include "src/update/adafactor.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "emulation/kernels/reduction.h"
#include "emulation/math/power.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

constexpr int64_t kGrain = kElementGrain;

// A tensor as a stack of matrices.
struct Stack {
  int64_t count = 1, rows, columns;

  explicit Stack(std::span<const int64_t> shape)
      : rows(shape[shape.size() - 2]), columns(shape.back()) {
    for (const int64_t size : shape.first(shape.size() - 2)) count *= size;
  }
  int64_t all_rows() const { return count * rows; }
  int64_t all_columns() const { return count * columns; }
};

// Sum of term(i), i < count.
template <typename Term>
double sum_of(int64_t count, Term term) {
  return reduce_fixed<double>(count, term, [](double a, double b) { return a + b; });
}

template <typename T>
class Adafactor {
 public:
  explicit Adafactor(const TensorStep<T>& step)
      : step_(step),
        n_(step.numbers),
        count_(step.arrays.count),
        t_(static_cast<double>(step.arrays.step)),
        is_matrix_(step.arrays.shape.size() >= 2) {}

  void run_torch() {
    const double take = lockstep_pow(t_, n_["beta2_decay"]);
    const double least = n_["eps1"] < 0 ? own_epsilon() : n_["eps1"];
    std::vector<T> v(static_cast<size_t>(count_));
    if (is_matrix_) {
      const T* g = step_.arrays.grad;
      const auto square = [g](int64_t i) { return double(g[i]) * double(g[i]); };
      const auto mean = [this](double sum, int64_t terms) {  // by a norm
        const double norm = step_.rounded(std::sqrt(sum));
        return step_.rounded(double(step_.rounded(norm * norm)) / static_cast<double>(terms));
      };
      average_means(square, mean, take);
      const Stack s(step_.arrays.shape);
      const T *rows = step_.arrays.states[0], *columns = step_.arrays.states[1];
      each([&](int64_t i) { v[i] = rows[i / s.columns] * columns[column_of(s, i)]; }, v);
      const std::vector<T> means = means_of_rows(s, least);
      each([&](int64_t i) { v[i] /= means[i / (s.rows * s.columns)]; }, v);
    } else {
      const std::vector<T> squares = squared_gradient(0);
      step_.advance(average(1 - take), squares.data(), count_, 0);
      std::copy_n(step_.arrays.states[0], count_, v.begin());
    }
    const T limit = step_.rounded(least * least);
    each([&](int64_t i) { v[i] = T(1) / std::sqrt(v[i] < limit ? limit : v[i]); }, v);
    each([&](int64_t i) { v[i] *= step_.arrays.grad[i]; }, v);
    const double step_size = std::min(step_.lr, 1 / std::sqrt(t_)) * scale_of_weight();
    const double clip = std::max(1.0, rms(v.data()) / n_["d"]);
    step_.finish(v.data(), step_size / clip, step_.lr, n_["weight_decay"]);
  }

  void run_transformers() {
    const double take = lockstep_pow(t_, n_["decay_rate"]);
    std::vector<T> u = squared_gradient(n_["eps1"]);
    if (is_matrix_) {
      const auto square = [&u](int64_t i) { return double(u[i]); };
      const auto mean = [this](double sum, int64_t terms) {
        return step_.rounded(double(step_.rounded(sum)) / static_cast<double>(terms));
      };
      average_means(square, mean, take);
      const Stack s(step_.arrays.shape);
      const std::vector<T> means = means_of_rows(s, 0);
      std::vector<T> rows(step_.arrays.states[0], step_.arrays.states[0] + s.all_rows());
      std::vector<T> columns(step_.arrays.states[1], step_.arrays.states[1] + s.all_columns());
      each([&](int64_t i) { rows[i] /= means[i / s.rows]; }, rows);
      each([&](int64_t i) { rows[i] = T(1) / std::sqrt(rows[i]); }, rows);
      each([&](int64_t i) { columns[i] = T(1) / std::sqrt(columns[i]); }, columns);
      each([&](int64_t i) { u[i] = rows[i / s.columns] * columns[column_of(s, i)]; }, u);
    } else {
      step_.advance(average(1 - take), u.data(), count_, 0);
      const T* v = step_.arrays.states[0];
      each([&](int64_t i) { u[i] = T(1) / std::sqrt(v[i]); }, u);
    }
    each([&](int64_t i) { u[i] *= step_.arrays.grad[i]; }, u);
    const T clip = step_.rounded(std::max(1.0, rms(u.data()) / n_["clip_threshold"]));
    each([&](int64_t i) { u[i] /= clip; }, u);
    double step_size = step_.lr;
    if (n_["relative_step"] != 0) {
      constexpr double kLargest = 1e-2, kWarmup = 1e-6;
      const double largest = n_["warmup_init"] != 0 ? kWarmup * t_ : kLargest;
      step_size = std::min(largest, 1 / std::sqrt(t_));
    }
    if (n_["scale_parameter"] != 0) step_size *= scale_of_weight();
    const T factor = step_.rounded(step_size);
    each([&](int64_t i) { u[i] *= factor; }, u);
    if (n_["beta1"] != 0)
      u = step_.advance(average(n_["beta1"]), u.data(), count_, is_matrix_ ? 2 : 1);
    step_.finish(u.data(), 1, step_size, n_["weight_decay"]);
  }

 private:
  static AverageRule average(double keep) {
    AverageRule rule;
    rule.momentum = keep;
    return rule;
  }
  static int64_t column_of(const Stack& s, int64_t i) {
    return i / (s.rows * s.columns) * s.columns + i % s.columns;
  }

  // One operation on every element: `fn` fills result[i], which is then rounded.
  template <typename Function>
  void each(Function fn, std::vector<T>& result) const {
    const auto count = static_cast<int64_t>(result.size());
    parallel_chunks(count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fn(i);
    });
    step_.round(result.data(), count);
  }

  // g^2, plus a number unless that is 0.
  std::vector<T> squared_gradient(double plus) const {
    const T* g = step_.arrays.grad;
    std::vector<T> squares(static_cast<size_t>(count_));
    each([&](int64_t i) { squares[i] = g[i] * g[i]; }, squares);
    const T added = step_.rounded(plus);
    if (plus != 0) each([&](int64_t i) { squares[i] += added; }, squares);
    return squares;
  }

  // States 0 and 1 move to the means of square(i) over rows and over columns.
  template <typename Square, typename Mean>
  void average_means(Square square, Mean mean, double take) const {
    const Stack s(step_.arrays.shape);
    std::vector<T> rows(static_cast<size_t>(s.all_rows()));
    parallel_chunks(s.all_rows(), row_grain(s.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto term = [&](int64_t i) { return square(row * s.columns + i); };
        rows[static_cast<size_t>(row)] = mean(sum_of(s.columns, term), s.columns);
      }
    });
    step_.advance(average(1 - take), rows.data(), s.all_rows(), 0);
    std::vector<double> sums(static_cast<size_t>(s.all_columns()));
    parallel_chunks(s.all_columns(), row_grain(s.rows), [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < s.rows; ++row) {
        for (int64_t at = begin; at < end; ++at) {
          const int64_t first = at / s.columns * s.rows * s.columns;
          sums[static_cast<size_t>(at)] += square(first + row * s.columns + at % s.columns);
        }
      }
    });
    std::vector<T> columns(sums.size());
    for (size_t i = 0; i < sums.size(); ++i) columns[i] = mean(sums[i], s.rows);
    step_.advance(average(1 - take), columns.data(), s.all_columns(), 1);
  }

  // Of state 0, for each matrix; not below `least`.
  std::vector<T> means_of_rows(const Stack& s, double least) const {
    std::vector<T> means;
    for (int64_t matrix = 0; matrix < s.count; ++matrix) {
      const T* rows = step_.arrays.states[0] + matrix * s.rows;
      const double sum = sum_of(s.rows, [&](int64_t i) { return double(rows[i]); });
      const T mean = step_.rounded(sum / static_cast<double>(s.rows)), limit = step_.rounded(least);
      means.push_back(mean < limit ? limit : mean);
    }
    return means;
  }

  double rms(const T* x) const {
    const double sum = sum_of(count_, [x](int64_t i) { return double(x[i]) * double(x[i]); });
    return double(step_.rounded(std::sqrt(sum))) / std::sqrt(static_cast<double>(count_));
  }
  double scale_of_weight() const { return std::max(n_["eps2"], rms(step_.arrays.weight)); }

  // PyTorch's: of the weight's format. Weights wider than FP32 keep FP32's.
  double own_epsilon() const {
    return std::max(step_.arrays.formats.weight->machine_epsilon(),
                    find_format("fp32").machine_epsilon());
  }

  const TensorStep<T>& step_;
  const HyperNumbers& n_;
  int64_t count_;
  double t_;
  bool is_matrix_;
};

}  // namespace

template <typename T>
void adafactor_step(const TensorStep<T>& step) {
  Adafactor<T>(step).run_torch();
}
template <typename T>
void transformers_adafactor_step(const TensorStep<T>& step) {
  Adafactor<T>(step).run_transformers();
}

template void adafactor_step(const TensorStep<float>&);
template void adafactor_step(const TensorStep<double>&);
template void transformers_adafactor_step(const TensorStep<float>&);
template void transformers_adafactor_step(const TensorStep<double>&);

}  // namespace lockstep

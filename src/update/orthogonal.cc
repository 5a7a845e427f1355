// See orthogonal.h.
#include "src/update/orthogonal.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "emulation/kernels/reduction.h"

namespace lockstep {
namespace {

template <typename T>
void transpose(const T* from, int64_t rows, int64_t columns, T* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  }
}

// One matrix with its short side first, and the buffers of an iteration.
template <typename T>
class Iteration {
 public:
  Iteration(const KernelSet& kernels, const NewtonSchulz& numbers, T* x, int64_t rows,
            int64_t columns)
      : kernels_(kernels.of<T>()),
        n_(numbers),
        sum_(find_accumulator(std::is_same_v<T, double> ? "fp64_fused" : "fp32_fused")),
        x_(x),
        rows_(rows),
        columns_(columns),
        gram_(static_cast<size_t>(rows * rows)),
        polynomial_(gram_.size()),
        product_(static_cast<size_t>(rows * columns)) {}

  void normalize() {
    const int64_t count = rows_ * columns_;
    round(x_, count);
    const auto square = [&](int64_t i) { return double(x_[i]) * double(x_[i]); };
    const auto plus = [](double a, double b) { return a + b; };
    const T norm = rounded(std::sqrt(reduce_fixed<double>(count, square, plus)));
    const T divisor = norm < rounded(n_.eps) ? rounded(n_.eps) : norm;  // NaN stays
    for (int64_t i = 0; i < count; ++i) x_[i] /= divisor;
    round(x_, count);
  }

  void step() {
    const int64_t inner = rows_ * rows_, outer = rows_ * columns_;
    multiply(x_, columns_, x_, columns_, /*transposed=*/true, rows_, columns_, gram_.data());
    round(gram_.data(), inner);
    multiply(gram_.data(), rows_, gram_.data(), rows_, false, rows_, rows_, polynomial_.data());
    add(n_.b, gram_.data(), n_.c, polynomial_.data(), inner);
    multiply(polynomial_.data(), rows_, x_, columns_, false, columns_, rows_, product_.data());
    add(n_.a, x_, 1, product_.data(), outer);
    std::ranges::copy(product_, x_);
  }

 private:
  void multiply(const T* a, int64_t lda, const T* b, int64_t ldb, bool transposed, int64_t columns,
                int64_t terms, T* c) const {
    kernels_.gemm({.transpose_b = transposed,
                   .m = rows_,
                   .n = columns,
                   .k = terms,
                   .a = a,
                   .lda = lda,
                   .b = b,
                   .ldb = ldb,
                   .c = c,
                   .ldc = columns,
                   .accumulator = &sum_});
  }
  // y = beta x + alpha y, rounded once to the format, as addmm does.
  void add(double beta, const T* x, double alpha, T* y, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      y[i] = static_cast<T>(alpha) * y[i] + static_cast<T>(beta) * x[i];
    }
    round(y, count);
  }
  void round(T* values, int64_t count) const {
    kernels_.quantize(values, values, count, {.format = n_.format}, nullptr);
  }
  T rounded(double x) const {
    return static_cast<T>(round_to_format(x, *n_.format, Rounding::kNearestEven));
  }

  const Kernels<T>& kernels_;
  const NewtonSchulz& n_;
  const Accumulator& sum_;
  T* x_;
  int64_t rows_, columns_;
  std::vector<T> gram_, polynomial_, product_;
};

}  // namespace

template <typename T>
void orthogonalize(const KernelSet& kernels, T* x, int64_t rows, int64_t columns,
                   const NewtonSchulz& numbers) {
  const bool turned = rows > columns;
  std::vector<T> copy(turned ? static_cast<size_t>(rows * columns) : 0);
  if (turned) transpose(x, rows, columns, copy.data());
  Iteration<T> iteration(kernels, numbers, turned ? copy.data() : x, std::min(rows, columns),
                         std::max(rows, columns));
  iteration.normalize();
  for (int64_t i = 0; i < numbers.steps; ++i) iteration.step();
  if (turned) transpose(copy.data(), columns, rows, x);
}
template void orthogonalize(const KernelSet&, float*, int64_t, int64_t, const NewtonSchulz&);
template void orthogonalize(const KernelSet&, double*, int64_t, int64_t, const NewtonSchulz&);

}  // namespace lockstep

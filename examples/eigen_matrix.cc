// Task: would FP16 be enough to factorise my matrix, if the residuals are FP32?
// Solves A x = b by an LU decomposition in FP16 and corrects x with FP32 residuals (iterative
// refinement; Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 12).
#include <Eigen/Dense>
#include <iostream>

#include "emulation/number/number_eigen.h"

using lockstep::fp16;
using MatrixFp16 = Eigen::Matrix<fp16, Eigen::Dynamic, Eigen::Dynamic>;

int main() {
  constexpr int kSize = 20;
  Eigen::MatrixXf a(kSize, kSize);
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) {
      const float distance = static_cast<float>(i > j ? i - j : j - i);
      a(i, j) = 1 / (1 + distance * distance);
    }
  }
  const Eigen::VectorXf exact = Eigen::VectorXf::LinSpaced(kSize, -1, 1);
  const Eigen::VectorXf b = a * exact;

  const Eigen::PartialPivLU<MatrixFp16> lu(a.cast<fp16>());
  Eigen::VectorXf x = Eigen::VectorXf::Zero(kSize);
  float error = 1;
  for (int step = 0; step < 5; ++step) {
    const Eigen::VectorXf residual = b - a * x;
    // Scaled to about 1: a small residual must not underflow in FP16.
    const float scale = residual.cwiseAbs().maxCoeff();
    if (scale == 0) break;
    const Eigen::Matrix<fp16, Eigen::Dynamic, 1> correction =
        lu.solve((residual / scale).cast<fp16>());
    x += scale * correction.cast<float>();
    error = (x - exact).norm() / exact.norm();
    std::cout << "after " << step + 1 << " FP16 solves: error " << error << '\n';
  }
  return error < 1e-6f ? 0 : 1;  // run as a test
}

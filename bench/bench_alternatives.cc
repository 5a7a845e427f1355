// Compares Lockstep with what one would use without it.
// Eigen's half and bfloat16 as scalars of a matrix product that rounds every step, against the same
// accumulators here; PyTorch's x.half().float() against quantize. bench/torch_round_trip.py
// measures PyTorch if LOCKSTEP_PYTHON names an interpreter with torch.
#include <fmt/format.h>

#include <Eigen/Core>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/ratio.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/quantize.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

constexpr int64_t kSize = 192;                     // Eigen::half takes 0.03 s for it
constexpr int64_t kRoundTrip = int64_t{16} << 20;  // elements

void fill(float* x, int64_t count, uint32_t index) {
  const RandomStream random(1, RandomPurpose::kTest, index);
  for (int64_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(random.uniform(static_cast<uint64_t>(i)) - 0.5);
  }
}

template <typename Scalar>
void eigen_product(bench::Table& table, const char* format, const char* scalar) {
  const bench::Row row{.work = std::string(format) + " accumulator",
                       .size = std::to_string(kSize) + "^3",
                       .unit = bench::Unit::kGigaflops,
                       .amount = 2.0 * kSize * kSize * kSize,
                       .peer = scalar};
  if (!table.wants(row)) return;
  using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Matrix a(kSize, kSize), b(kSize, kSize), c(kSize, kSize);
  std::vector<float> x(kSize * kSize), y(x), z(x);
  fill(x.data(), kSize * kSize, 1);
  fill(y.data(), kSize * kSize, 2);
  for (int64_t i = 0; i < kSize * kSize; ++i) {
    x[i] = static_cast<float>(a.data()[i] = Scalar(x[i]));
    y[i] = static_cast<float>(b.data()[i] = Scalar(y[i]));
  }
  const GemmArgs<float> args{.m = kSize,
                             .n = kSize,
                             .k = kSize,
                             .a = x.data(),
                             .lda = kSize,
                             .b = y.data(),
                             .ldb = kSize,
                             .c = z.data(),
                             .ldc = kSize,
                             .accumulator = &find_accumulator(format)};
  table.measure(
      row, [&] { c.noalias() = a * b; }, [&] { active_kernels().f32.gemm(args); });
}

// Seconds of one x.half().float(); negative without PyTorch.
double torch_seconds(int threads) {
  const char* python = std::getenv("LOCKSTEP_PYTHON");
  if (python == nullptr) return -1;
  const std::string command = fmt::format("'{}' '{}/bench/torch_round_trip.py' {} {}", python,
                                          LOCKSTEP_SOURCE_DIR, kRoundTrip, threads);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  double seconds = -1;
  if (pipe == nullptr || std::fscanf(pipe.get(), "%lf", &seconds) != 1) return -1;
  return seconds;
}

void torch_round_trip(const bench::Options& options, bench::Table& table) {
  bench::Row row{.work = "round fp16", .size = "16 Mi", .amount = kRoundTrip, .peer = "memcpy"};
  if (!table.wants(row)) return;
  const double peer_seconds = torch_seconds(options.threads);
  if (peer_seconds < 0) {
    fmt::print(stderr, "PyTorch's round trip skipped: LOCKSTEP_PYTHON has no torch\n");
    return;
  }
  row.peer = "x.half().float()";
  const auto x = bench::make_floats(kRoundTrip), y = bench::make_floats(kRoundTrip);
  fill(x.get(), kRoundTrip, 1);
  const QuantizeSpec spec{.format = &find_format("fp16")};
  table.add(row, peer_seconds, bench::median_seconds(options, [&] {
              active_kernels().f32.quantize(x.get(), y.get(), kRoundTrip, spec, nullptr);
            }));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  const bench::Options options = bench::start(argc, argv);
  bench::Table table(options);
  if (options.threads == 1) {  // Eigen is built without threads
    eigen_product<Eigen::half>(table, "fp16", "Eigen::half");
    eigen_product<Eigen::bfloat16>(table, "bf16", "Eigen::bfloat16");
  }
  torch_round_trip(options, table);
  table.print();
}

// Compares the lanes' matrix products with oneDNN's sgemm.
// Every row multiplies random matrices of one size in the same process as dnnl_sgemm, in turns, on
// the same number of threads. Operands hold values of the inputs' format, unless the row's work
// rounds them itself.
#include <dnnl.h>
#include <omp.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "bench/ratio.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cpu_unit.h"
#include "emulation/kernels/rounded_gemm.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

// m x n x k. The last two are skinny: an attention block's weight gradient, and a convolution as a
// product with few rows.
struct Size {
  int64_t m, n, k;
  bool skinny;
  std::string text() const {
    if (m == n && n == k) return std::to_string(m) + "^3";
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  }
  double flops() const { return 2.0 * static_cast<double>(m * n * k); }
};
constexpr Size kSizes[] = {{512, 512, 512, false},
                           {2048, 2048, 2048, false},
                           {256, 768, 3072, true},
                           {64, 50176, 576, true}};

// DESIGN, section 9: time over dnnl_sgemm's; kOtherSumsTarget is half of what was asked.
constexpr double kFusedTarget = 1.15, kSkinnyTarget = 1.35, kFp16Target = 5.5, kBlocksTarget = 5.0,
                 kCpuTarget = 0.7, kOtherSumsTarget = 10.0;

struct Matrices {
  explicit Matrices(const Size& size)
      : a(bench::make_floats(static_cast<size_t>(size.m * size.k))),
        b(bench::make_floats(static_cast<size_t>(size.k * size.n))),
        c(bench::make_floats(static_cast<size_t>(size.m * size.n))) {}
  bench::FloatArray a, b, c;
};

// Uniform in [-0.5, 0.5), rounded to `format`.
void fill(float* x, int64_t count, const Format& format, uint32_t index) {
  constexpr int64_t kPattern = int64_t{1} << 18;  // then they repeat
  const RandomStream random(1, RandomPurpose::kTest, index);
  for (int64_t i = 0; i < count; ++i) {
    x[i] = i < kPattern
               ? static_cast<float>(round_to_format(random.uniform(static_cast<uint64_t>(i)) - 0.5,
                                                    format, Rounding::kNearestEven))
               : x[i - kPattern];
  }
}

class SizeBench {
 public:
  SizeBench(const Size& size, bench::Table& table) : size_(size), table_(table), x_(size) {
    fill(x_.c.get(), size.m * size.n, find_format("fp32"), 3);
  }

  void run() {
    measure_row("fp32 as it is", 0, "fp32",
                [this] { active_kernels().f32.gemm(product("fp32_fused")); });
    const double fused = size_.skinny ? kSkinnyTarget : kFusedTarget;
    for (const char* format : {"fp16", "bf16", "tf32"}) {
      const std::string work = std::string(format) + " inputs, rounded and measured on the way";
      measure_row(work, fused, "fp32", [this, format] {
        RoundedGemmArgs<float> args;
        args.product = product("fp32_fused");
        args.a = {{.format = &find_format(format)}, &stats_[0]};
        args.b = {{.format = &find_format(format)}, &stats_[1]};
        args.c = {{.format = &find_format(format)}, &stats_[2]};
        rounded_gemm(active_kernels().f32, args);
      });
    }
    measure_accumulator("fp16", "fp16", kFp16Target);
    for (const char* name : {"hopper_fp16", "ampere_fp16", "volta_fp16"}) {
      measure_accumulator(name, "fp16", kBlocksTarget);
    }
    measure_accumulator("hopper_bf16", "bf16", kBlocksTarget);
    measure_accumulator("hopper_tf32", "tf32", kBlocksTarget);
    measure_accumulator("hopper_fp8", "fp8_e4m3", kBlocksTarget);
    measure_accumulator("fp16_unfused", "fp16", kOtherSumsTarget);
    measure_accumulator("fp32_kahan", "fp32", kOtherSumsTarget);
    measure_accumulator("fp32_pairwise", "fp32", kOtherSumsTarget);
    measure_accumulator("arm_bfdot", "bf16", kOtherSumsTarget);
    measure_accumulator("arm_bfdot_ebf", "bf16", kOtherSumsTarget);
    if (cpu_has(CpuUnit::kAvx512Bf16)) {
      measure_row("bf16 on the CPU's VDPBF16PS", kCpuTarget, "bf16",
                  [this] { cpu_engine_kernels().f32.gemm(product("avx512_bf16")); });
    }
  }

 private:
  GemmArgs<float> product(const char* accumulator, const Format* format = nullptr) const {
    return {.m = size_.m,
            .n = size_.n,
            .k = size_.k,
            .a = x_.a.get(),
            .lda = size_.k,
            .b = x_.b.get(),
            .ldb = size_.n,
            .c = x_.c.get(),
            .ldc = size_.n,
            .accumulator = &find_accumulator(accumulator),
            .a_format = format,
            .b_format = format};
  }

  void measure_accumulator(const char* name, const char* inputs, double target) {
    measure_row(std::string(name) + " accumulator", target, inputs, [this, name, inputs] {
      active_kernels().f32.gemm(product(name, &find_format(inputs)));
    });
  }

  template <typename Work>
  void measure_row(const std::string& work, double target, const char* inputs, Work run) {
    const bench::Row row{.work = work,
                         .size = size_.text(),
                         .unit = bench::Unit::kGigaflops,
                         .amount = size_.flops(),
                         .peer = "dnnl_sgemm",
                         .target = target};
    if (!table_.wants(row)) return;
    if (inputs_ != inputs) {
      inputs_ = inputs;
      fill(x_.a.get(), size_.m * size_.k, find_format(inputs), 1);
      fill(x_.b.get(), size_.k * size_.n, find_format(inputs), 2);
    }
    const auto sgemm = [this] {
      dnnl_sgemm('N', 'N', size_.m, size_.n, size_.k, 1, x_.a.get(), size_.k, x_.b.get(), size_.n,
                 0, x_.c.get(), size_.n);
    };
    table_.measure(row, sgemm, run);
  }

  const Size size_;
  bench::Table& table_;
  Matrices x_;
  TensorStats stats_[3];
  std::string_view inputs_;
};

// oneDNN uses OpenMP threads. They must exist before this thread is pinned, and must not spin while
// ours work; the environment variable for that is read when the program starts.
void start_onednn(int threads) {
  omp_set_num_threads(threads);
  constexpr int64_t kSmall = 256;
  const Matrices x({kSmall, kSmall, kSmall, false});
  dnnl_sgemm('N', 'N', kSmall, kSmall, kSmall, 1, x.a.get(), kSmall, x.b.get(), kSmall, 0,
             x.c.get(), kSmall);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") == nullptr) {
    setenv("GOMP_SPINCOUNT", "1000", 1);
    execv("/proc/self/exe", argv);
  }
  const lockstep::bench::Options options =
      lockstep::bench::start(argc, argv, lockstep::start_onednn);
  lockstep::bench::Table table(options);
  for (const auto& size : lockstep::kSizes) lockstep::SizeBench(size, table).run();
  table.print();
}

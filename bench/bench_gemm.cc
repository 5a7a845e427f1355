// How fast is an emulated matrix product beside oneDNN's sgemm?
// Arguments: m, n, k. GFLOP/s count 2 m n k; run with --threads=N (default 1) for both libraries.
#include <benchmark/benchmark.h>
#include <dnnl.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "emulation/kernel_set.h"
#include "emulation/rounding.h"
#include "src/core/parallel.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

std::vector<float> matrix(int64_t count, const Format& format, uint32_t index) {
  const RandomStream random(1, RandomPurpose::kTest, index);
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(
        round_to_format(random.uniform(i) - 0.5, format, Rounding::kNearestEven));
  }
  return x;
}

struct Problem {
  Problem(benchmark::State& state, const char* format)
      : m(state.range(0)),
        n(state.range(1)),
        k(state.range(2)),
        a(matrix(m * k, find_format(format), 1)),
        b(matrix(k * n, find_format(format), 2)),
        c(static_cast<size_t>(m * n)) {}
  void report(benchmark::State& state) const {
    state.counters["FLOP/s"] = benchmark::Counter(2.0 * static_cast<double>(m * n * k),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  }
  int64_t m, n, k;
  std::vector<float> a, b, c;
};

void sgemm_onednn(benchmark::State& state) {
  Problem p(state, "fp32");
  for (auto _ : state) {
    dnnl_sgemm('N', 'N', p.m, p.n, p.k, 1, p.a.data(), p.k, p.b.data(), p.n, 0, p.c.data(), p.n);
  }
  p.report(state);
}

void gemm(benchmark::State& state, const KernelSet& set, const char* inputs, const char* name,
          bool with_events) {
  Problem p(state, inputs);
  std::vector<uint8_t> events(with_events ? p.c.size() : 0);
  const GemmArgs<float> args{.m = p.m,
                             .n = p.n,
                             .k = p.k,
                             .a = p.a.data(),
                             .lda = p.k,
                             .b = p.b.data(),
                             .ldb = p.n,
                             .c = p.c.data(),
                             .ldc = p.n,
                             .accumulator = &find_accumulator(name),
                             .events = with_events ? events.data() : nullptr};
  for (auto _ : state) set.f32.gemm(args);
  p.report(state);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Args({512, 512, 512})->Args({2048, 2048, 2048})->Args({256, 768, 3072});
  bench->Args({64, 50176, 576})->Args({6, 576, 25})->Unit(benchmark::kMillisecond)->UseRealTime();
}

void register_all() {
  benchmark::RegisterBenchmark("onednn/fp32", sgemm_onednn)->Apply(sizes);
  for (const KernelSet* set : available_kernel_sets()) {
    if (set == &scalar_kernels()) continue;
    struct Row {
      const char *inputs, *accumulator;
      bool events;
    };
    for (const Row& row : {Row{"fp16", "fp32_fused", false}, Row{"fp16", "fp16", false},
                           Row{"fp16", "fp16", true}, Row{"bf16", "bf16", true}}) {
      const std::string name =
          std::string(set->name) + "/" + row.accumulator + (row.events ? "/events" : "");
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
        gemm(state, *set, row.inputs, row.accumulator, row.events);
      })->Apply(sizes);
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  int threads = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--threads=", 0) == 0) threads = std::atoi(argument.c_str() + 10);
  }
  lockstep::set_thread_count(threads);
  // oneDNN's OpenMP pool reads this on its first use.
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);
  lockstep::register_all();
  benchmark::RunSpecifiedBenchmarks();
}

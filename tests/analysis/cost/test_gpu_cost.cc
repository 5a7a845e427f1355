// The roofline by hand, and what must hold for every GPU and policy.
#include "analysis/cost/gpu_cost.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "analysis/cost/network.h"
#include "src/core/error.h"
#include "src/policy/find_policy.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

TEST_CASE("every GPU's rates grow as formats narrow, and have a source") {
  for (const Gpu& gpu : gpus()) {
    CAPTURE(gpu.name);
    CHECK_FALSE(gpu.source.empty());
    CHECK(&find_gpu(gpu.name) == &gpu);
    CHECK(gpu.fp16 > gpu.fp32);
    for (const double wider_and_narrower : {gpu.fp8 - gpu.fp16, gpu.nvfp4 - gpu.mxfp8}) {
      CHECK((wider_and_narrower > 0 || gpu.fp8 == 0 || gpu.nvfp4 == 0));
    }
    if (gpu.tf32 > 0) CHECK(gpu.tf32 < gpu.fp16);
  }
  CHECK(peak_rate(find_gpu("h100"), "fp8") == 1979);
  CHECK(peak_rate(find_gpu("h100"), "mxfp8") == 0);
  CHECK_THROWS_AS(find_gpu("h1000"), InputError);
}

TEST_CASE(
    "FP8 products take the FP8 unit however long their blocks are, MXFP8's a unit of their own") {
  const TempDir dir;
  RunOptions options = small_run();
  options.batch = 16;
  const Network network = read_network(record(dir.file("run.h5"), options));
  Gpu gpu = find_gpu("h100");
  gpu.fp32 = gpu.fp16 = gpu.bf16 = 1e-12;
  gpu.fp8 = 4e-12;  // mxfp8: none
  gpu.bandwidth = 1e30;
  const auto aligned = std::ranges::find_if(
      network.linear, [&](const std::string& layer) { return !network.unaligned.contains(layer); });
  REQUIRE(aligned != network.linear.end());
  const auto seconds = [&](const char* policy) {
    return cost_of(network, find_policy(policy), MemoryFacts{}, gpu).by_layer.at(*aligned);
  };
  const double wide = seconds("torch-autocast-bf16");
  CHECK(seconds("fp8-current") == doctest::Approx(wide / 4));
  CHECK(seconds("fp8-rowwise") == doctest::Approx(wide / 4));
  CHECK(seconds("fp8-blockwise") == doctest::Approx(wide / 4));
  CHECK(seconds("mxfp8") == doctest::Approx(wide));
}

TEST_CASE("traffic by hand: what one linear layer reads and writes") {
  const TempDir dir;
  const Network network = read_network(record(dir.file("run.h5"), small_run()));
  // So slow a unit for arithmetic, and so slow a memory, that one of the two is all that counts.
  Gpu memory_bound = find_gpu("h100");
  memory_bound.bandwidth = 1e-9;  // a byte a second
  Gpu compute_bound = find_gpu("h100");
  compute_bound.fp32 = compute_bound.bf16 = 1e-12;  // an operation a second
  compute_bound.bandwidth = 1e30;
  const MemoryFacts none;
  // fc3 of small_run: x (8, 64), w (10, 64), b (10): y, then dx, dw, db.
  const double x = 8 * 64, w = 10 * 64, b = 10, y = 8 * 10;
  const double forward = x + w + b + y, dx = y + w + x, dw = x + y + w, db = y + b;
  const StepCost fp32 = cost_of(network, find_policy("fp32"), none, memory_bound);
  CHECK(fp32.by_layer.at("fc3") == doctest::Approx(4 * (forward + dx + dw + db)));
  const StepCost arithmetic = cost_of(network, find_policy("fp32"), none, compute_bound);
  CHECK(arithmetic.by_layer.at("fc3") == doctest::Approx(2 * 3 * 8.0 * 64 * 10));
  // In bf16: half the traffic, and casts of w, b and dy that read 4 and write 2 bytes (x comes in
  // bf16). n is 10: not aligned, half the rate.
  const Policy bf16 = find_policy("torch-autocast-bf16");
  const StepCost low = cost_of(network, bf16, none, memory_bound);
  CHECK(low.by_layer.at("fc3") == doctest::Approx(2 * (forward + dx + dw + db) + 6 * (w + b + y)));
  compute_bound.fp32 = 0;
  const StepCost low_arithmetic = cost_of(network, bf16, none, compute_bound);
  CHECK(low_arithmetic.by_layer.at("fc3") ==
        doctest::Approx(2 * 3 * 8.0 * 64 * 10 / kUnalignedRate));
}

TEST_CASE("the optimizer's traffic: what is kept is read and written, gradients are read") {
  const TempDir dir;
  const Network network = read_network(record(dir.file("run.h5"), small_run()));
  Gpu gpu = find_gpu("h100");
  gpu.bandwidth = 1e-9;
  const MemoryFacts memory{.weights = 100, .gradients = 10, .optimizer_state = 30};
  const double without = cost_of(network, find_policy("fp32"), {}, gpu).seconds;
  CHECK(cost_of(network, find_policy("fp32"), memory, gpu).seconds - without ==
        doctest::Approx(2 * 130 + 10));
}

}  // namespace
}  // namespace lockstep

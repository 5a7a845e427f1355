// All-reduce of the workers' gradients, in every declared order and format.
#include "src/update/all_reduce.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "emulation/kernels/active_kernels.h"

using namespace lockstep;

namespace {

using Order = AllReduce::Order;
using Divide = AllReduce::Divide;

Tensor vector_of(const std::vector<float>& values) {
  return Tensor::from<float>({static_cast<int64_t>(values.size())}, values);
}

AllReduce dividing(Divide divide) {
  AllReduce how;
  how.divide = divide;
  return how;
}

}  // namespace

TEST_CASE("all-reduce by hand: four workers, four elements in FP16") {
  // ring      element c: ((g(c+1) + g(c+2)) + g(c+3)) + g(c)      tree: (g0 + g1) + (g2 + g3)
  // element 0, 1   2048 + 1 is 2048 in FP16, 2048 + 2 is not
  // element 2      40000 + 40000 overflows; a ring begins with -40000 + 40000 here
  // element 3      2^-24, the smallest number: a quarter of it is 0, four of them are not
  const std::vector<std::vector<float>> gradients = {{1, 1, 40000, 0x1p-24f},
                                                     {2048, 1, 40000, 0x1p-24f},
                                                     {1, 1, -40000, 0x1p-24f},
                                                     {1, 2048, -40000, 0x1p-24f}};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    Order order;
    Divide divide;
    std::vector<float> mean;
    uint64_t entering_zero, overflows;
  };
  const std::vector<Case> cases = {
      {Order::kRing, Divide::kBefore, {512, 512, 0, 0}, 4, 0},
      {Order::kTree, Divide::kBefore, {512.5f, 512.5f, 0, 0}, 4, 0},
      {Order::kRing, Divide::kAfter, {512, 512, 0, 0x1p-24f}, 0, 0},
      // Two partial sums overflow, to infinities of both signs.
      {Order::kTree, Divide::kAfter, {512.5f, 512.5f, nan, 0x1p-24f}, 0, 2},
      // ((g0 + g1) + g2) + g3: 1 + 2048 loses the 1, 1 + 1 + 1 does not; 80000 overflows.
      {Order::kAllGather, Divide::kAfter, {512, 513, inf, 0x1p-24f}, 0, 1},
      // Halves before and after: 2^-25 rounds to 0, 1025.5 to 1026, and nothing overflows.
      {Order::kAllGather, Divide::kBoth, {512, 513, 0, 0}, 4, 0},
  };
  const Format& fp16 = find_format("fp16");
  for (const Case& c : cases) {
    CAPTURE(c.order);
    CAPTURE(c.divide);
    AllReduce how = dividing(c.divide);
    how.format = &fp16;
    how.order = c.order;
    std::vector<Tensor> workers;
    uint64_t entering_zero = 0;
    for (const auto& gradient : gradients) {
      TensorStats stats;
      enter_all_reduce(active_kernels(), how, fp16, 4, workers.emplace_back(vector_of(gradient)),
                       &stats);
      entering_zero += stats.to_zero;
    }
    CHECK(entering_zero == c.entering_zero);
    Tensor mean = vector_of({7, 7, 7, 7});
    TensorStats stats;
    all_reduce(active_kernels(), how, fp16, fp16, workers, mean, &stats);
    CHECK(mean.same_bits(vector_of(c.mean)));
    CHECK(stats.to_infinity == c.overflows);
    CHECK(stats.count == 4);
  }
}

TEST_CASE("all-reduce: cast before the sum, and back to the gradient's own format") {
  const Format &fp32 = find_format("fp32"), &fp16 = find_format("fp16");
  // In FP16 70000 overflows as it enters, 2049 becomes 2048, and 2^-26 becomes 0.
  AllReduce how;
  how.format = &fp16;
  Tensor g = vector_of({70000, 2049, 0x1p-26f});
  TensorStats stats;
  enter_all_reduce(active_kernels(), how, fp16, 2, g, &stats);
  CHECK(g.same_bits(vector_of({std::numeric_limits<float>::infinity(), 1024, 0})));
  CHECK(stats.to_infinity == 1);
  CHECK(stats.to_zero == 1);
  // FP16 gradients summed in FP32: 2048 + 1 = 2049 there, 2048 when it is FP16 again.
  how = dividing(Divide::kAfter);
  how.format = &fp32;
  how.order = Order::kTree;
  std::vector<Tensor> workers = {vector_of({4096}), vector_of({2})};
  Tensor mean = vector_of({0});
  all_reduce(active_kernels(), how, fp32, fp16, workers, mean, &stats);
  CHECK(mean.as<float>()[0] == 2048);
  CHECK(stats.inexact == 1);
}

TEST_CASE("all-reduce: divisors before the sum, by workers") {
  // Both: PyTorch's FSDP2 doubles from 1 while the divisor so far divides W and is below W / it.
  struct Case {
    int64_t workers;
    double both;
  };
  for (const auto& [workers, both] :
       {Case{1, 1}, {2, 2}, {3, 2}, {4, 2}, {6, 4}, {8, 4}, {16, 4}}) {
    CAPTURE(workers);
    const auto count = static_cast<double>(workers);
    CHECK(divisor_before(dividing(Divide::kBefore), workers) == count);
    CHECK(divisor_before(dividing(Divide::kAfter), workers) == 1);
    CHECK(divisor_before(dividing(Divide::kBoth), workers) == both);
  }
}

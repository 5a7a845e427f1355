// Fused attention in blocks (emulation/kernels/flash_kernel.cc): in FP64 the blocks change only
// last digits; in BF16 they round where the table's rows say; the fast exp keeps its bound.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/scalar/products/attention.h"
#include "emulation/math/exp_log.h"
#include "emulation/math/fast_exp.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

constexpr AttentionShape kShape{
    .stacks = 4, .queries = 5, .keys = 7, .width = 3, .value_width = 3, .k_group = 2, .v_group = 4};
// 7 keys give blocks of 3, 3 and 1, 5 queries give blocks of 2, 2 and 1.
constexpr FlashKernel kSmallBlocks{.name = "small",
                                   .help = "",
                                   .source = "",
                                   .key_block = 3,
                                   .query_blocks = {{{0, 2}, {6, 4}, {9, 8}}}};

template <typename T>
std::vector<T> normals(int64_t count, uint32_t stream) {
  const RandomStream random(11, RandomPurpose::kTest, stream);
  std::vector<T> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(4 * random.uniform(i) - 2);
  return x;
}

template <typename T>
InnerMath<T> math_in(const char* accumulator, const Format* format) {
  const Accumulator& sums = find_accumulator(accumulator);
  InnerMath<T> math{&scalar_kernels().of<T>(), &sums, &sums};
  math.rounding.format = format;
  return math;
}

// y, probabilities, dq, dk and dv, one after the other.
template <typename T>
std::vector<T> run(const AttentionShape& s, const FlashKernel& flash, const InnerMath<T>& math,
                   const std::vector<int32_t>& keep, const std::vector<int32_t>& dropped) {
  const int64_t q_size = s.stacks * s.queries * s.width,
                y_size = s.stacks * s.queries * s.value_width;
  const int64_t k_size = s.stacks / s.k_group * s.keys * s.width;
  const int64_t v_size = s.stacks / s.v_group * s.keys * s.value_width;
  const auto q = normals<T>(q_size, 0), k = normals<T>(k_size, 1), v = normals<T>(v_size, 2);
  const auto dy = normals<T>(y_size, 3);
  std::vector<T> out(static_cast<size_t>(q_size + y_size + s.scores() + k_size + v_size));
  AttentionForward<T> forward{s, AttentionModel::kFlash, &flash, math, 0.6};
  forward.q = q.data(), forward.k = k.data(), forward.v = v.data();
  forward.keep_mask = keep.data();
  forward.dropout_mask = dropped.data(), forward.dropout = 0.25;
  forward.y = out.data(), forward.probabilities = forward.y + y_size;
  attention_forward(forward);
  AttentionBackward<T> backward{s, AttentionModel::kFlash, &flash, math, 0.6};
  backward.q = q.data(), backward.k = k.data(), backward.v = v.data(), backward.dy = dy.data();
  backward.probabilities = forward.probabilities, backward.y = forward.y;
  backward.dropout_mask = dropped.data(), backward.dropout = 0.25;
  backward.dq = forward.probabilities + s.scores();
  backward.dk = backward.dq + q_size, backward.dv = backward.dk + k_size;
  attention_backward(backward);
  return out;
}

std::vector<int32_t> mask(const AttentionShape& s, int64_t zero_every) {
  std::vector<int32_t> kept(static_cast<size_t>(s.scores()));
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = static_cast<int64_t>(i) % zero_every != 0;
  return kept;
}

TEST_CASE("attention in blocks equals attention: FP64, masks, dropout, shared heads") {
  std::vector<int32_t> keep = mask(kShape, 4);
  std::fill_n(keep.begin(), kShape.keys, 0);          // a row without keys
  std::fill_n(keep.begin() + 2 * kShape.keys, 3, 0);  // one without keys in its first block
  const std::vector<int32_t> dropped = mask(kShape, 5);
  const auto math = math_in<double>("fp64_fused", nullptr);
  const auto whole = run(kShape, find_flash_kernel("whole_rows"), math, keep, dropped);
  for (const FlashKernel& kernel : {kSmallBlocks, find_flash_kernel("torch_cpu")}) {
    CAPTURE(kernel.name);
    const auto blocked = run(kShape, kernel, math, keep, dropped);
    // Some 30 operations on numbers of at most 10: 30 2^-53 10, and a margin of 10.
    constexpr double kTolerance = 30 * 0x1p-53 * 10 * 10;
    double worst = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      worst = std::max(worst, std::fabs(whole[i] - blocked[i]));
    }
    CHECK(worst <= kTolerance);
    CHECK(std::all_of(blocked.begin(), blocked.begin() + kShape.value_width,
                      [](double y) { return y == 0; }));
  }
}

TEST_CASE("attention in blocks: the same bits from every kernel set and number of threads") {
  constexpr AttentionShape kLarge{.stacks = 6,
                                  .queries = 70,
                                  .keys = 75,
                                  .width = 16,
                                  .value_width = 16,
                                  .k_group = 2,
                                  .v_group = 2};
  FlashKernel kernel = find_flash_kernel("torch_cpu");
  kernel.key_block = 40;  // vectors of 16 and a rest, twice
  const std::vector<int32_t> keep = mask(kLarge, 4), dropped = mask(kLarge, 5);
  InnerMath<float> math = math_in<float>("fp32_fused", &find_format("bf16"));
  const auto bits = [&] {
    std::vector<uint32_t> words;
    for (const float x : run(kLarge, kernel, math, keep, dropped)) {
      words.push_back(std::bit_cast<uint32_t>(x));
    }
    return words;
  };
  const int threads_before = thread_count();
  set_thread_count(1);
  const auto want = bits();
  for (const KernelSet* set : available_kernel_sets()) {
    CAPTURE(set->name);
    math.kernels = &set->of<float>();
    for (const int threads : {1, 3}) {
      set_thread_count(threads);
      CHECK(bits() == want);
    }
  }
  set_thread_count(threads_before);
}

TEST_CASE("attention in blocks by hand: BF16 rounds the weights before they are normalised") {
  // Scores 0 and ln 3, from the mask: e = 1/3 and 1, l = 4/3; v = (1, 0) selects the first one. 1/3
  // is 0.333984 in BF16, and the result is 0.75 of that; the probability 1/4 is exact in BF16.
  const AttentionShape s{.stacks = 1, .queries = 1, .keys = 2, .width = 1, .value_width = 1};
  const Format& bf16 = find_format("bf16");
  const float q = 0, k[2] = {0, 0}, v[2] = {1, 0};
  const float added[2] = {0, 1.09861229F};
  float y = 0, p[2] = {};
  AttentionForward<float> args{s, AttentionModel::kFlash, &find_flash_kernel("torch_cpu"),
                               math_in<float>("fp32_fused", &bf16), 1};
  args.q = &q, args.k = k, args.v = v, args.added_mask = added, args.y = &y, args.probabilities = p;
  attention_forward(args);
  constexpr float kThirdInBf16 = 0x1.56p-2F;
  CHECK(y == doctest::Approx(kThirdInBf16 * 0.75).epsilon(0x1p-22));
  CHECK(p[0] == doctest::Approx(0.25).epsilon(0x1p-22));
  args.flash = &find_flash_kernel("whole_rows");
  attention_forward(args);
  CHECK(y == doctest::Approx(0.25).epsilon(0x1p-22));
}

TEST_CASE("attention in blocks by hand: a gradient is rounded after every block but the last") {
  // One key has all the weight, so dv is the sum of dy over the queries, here one in a block:
  // 1 + 2^-9 is 1 in BF16, and 2^-9 is added to that. The caller does the last rounding.
  const AttentionShape s{.stacks = 1, .queries = 2, .keys = 1, .width = 1, .value_width = 1};
  FlashKernel kernel = kSmallBlocks;
  kernel.query_blocks = {{{0, 1}, {0, 1}, {0, 1}}};
  const float q[2] = {}, k = 0, v = 1, p[2] = {1, 1}, y[2] = {1, 1}, dy[2] = {1 + 0x1p-9F, 0x1p-9F};
  float dq[2], dk = 0, dv = 0;
  AttentionBackward<float> args{s, AttentionModel::kFlash, &kernel,
                                math_in<float>("fp32_fused", &find_format("bf16")), 1};
  args.q = q, args.k = &k, args.v = &v, args.probabilities = p, args.y = y, args.dy = dy;
  args.dq = dq, args.dk = &dk, args.dv = &dv;
  attention_backward(args);
  CHECK(dv == 1 + 0x1p-9F);
  kernel.query_blocks = {{{0, 2}, {0, 2}, {0, 2}}};
  attention_backward(args);
  CHECK(dv == 1 + 0x1p-8F);
}

TEST_CASE("flash kernels: blocks by the number of queries; names") {
  const FlashKernel& cpu = find_flash_kernel("torch_cpu");
  CHECK(cpu.query_block(1) == 32);
  CHECK(cpu.query_block(191) == 32);
  CHECK(cpu.query_block(192) == 64);
  CHECK(cpu.query_block(768) == 256);
  CHECK_FALSE(flash_kernels().front().in_blocks());
  for (const FlashKernel& kernel : flash_kernels()) {
    CHECK(&find_flash_kernel(kernel.name) == &kernel);
    CHECK_FALSE(kernel.help.empty());
    CHECK_FALSE(kernel.source.empty());
    CHECK(kernel.in_blocks() == (kernel.query_block(1) > 0));
  }
  CHECK_THROWS_WITH_AS(find_flash_kernel("torch"), doctest::Contains("did you mean 'torch_cpu'"),
                       InputError);
}

TEST_CASE("fast_exp: within its bound, exact at the ends") {
  double worst = 0;
  constexpr int kSteps = 200'000;
  for (int i = 0; i <= kSteps; ++i) {
    const float x = kFastExpMin + (kFastExpMax - kFastExpMin) * static_cast<float>(i) / kSteps;
    if (x < kFastExpMin || x > kFastExpMax) continue;
    worst = std::max(worst, std::fabs(static_cast<double>(fast_exp(x)) /
                                          lockstep_exp<double>(static_cast<double>(x)) -
                                      1));
  }
  CHECK(worst <= kFastExpError);
  CHECK(worst > kFastExpError / 2);  // it is not an exact exp
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(fast_exp(-kInfinity) == 0);
  CHECK(fast_exp(-100.0F) == 0);
  CHECK(fast_exp(kInfinity) == kInfinity);
  CHECK(fast_exp(89.0F) == kInfinity);
  CHECK(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace lockstep

// Every order gives the same sums up to rounding, and none but the terms' order changes.
#include "analysis/faithful/other_order.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/active_kernels.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

std::vector<float> uniform(int64_t count, uint32_t stream) {
  const RandomStream random(7, RandomPurpose::kTwin, stream);
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(2 * random.uniform(i) - 1);
  return x;
}

// Largest distance of any order's result from that of the active kernels; `different`: results.
template <typename Run>
double farthest(int64_t count, size_t& different, Run run) {
  std::vector<float> usual(static_cast<size_t>(count));
  run(active_kernels().f32, usual.data());
  std::set<std::vector<float>> results = {usual};
  double most = 0;
  for (const auto kernels : kernels_in_other_orders()) {
    std::vector<float> out(usual.size());
    run(kernels().f32, out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(out[i]) - usual[i]));
    }
    results.insert(out);
  }
  different = results.size();
  return most;
}

// The bound for n terms of at most 1: |error| <= n u sum |terms|, twice for two results.
double bound(int64_t n) {
  const auto terms = static_cast<double>(n);
  return 2 * terms * 0x1p-24 * terms;
}

const Accumulator& fp32() {
  return find_accumulator("fp32_fused");
}

TEST_CASE("matrix products in every layout") {
  constexpr int64_t kM = 5, kN = 7, kK = 64;
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const std::vector<float> a = uniform(kM * kK, 1), b = uniform(kK * kN, 2);
      size_t different = 0;
      const double far = farthest(kM * kN, different, [&](const Kernels<float>& kernels, float* c) {
        GemmArgs<float> args{.transpose_a = transpose_a, .transpose_b = transpose_b};
        args.m = kM, args.n = kN, args.k = kK;
        args.a = a.data(), args.lda = transpose_a ? kM : kK;
        args.b = b.data(), args.ldb = transpose_b ? kK : kN;
        args.c = c, args.ldc = kN;
        args.accumulator = &fp32();
        kernels.gemm(args);
      });
      CHECK(far <= bound(kK));
      CHECK(different == 1 + kOtherOrders);
    }
  }
}

TEST_CASE("the three passes of a convolution") {
  const ConvShape shape{.batch = 8,
                        .in_channels = 16,
                        .in_height = 6,
                        .in_width = 5,
                        .out_channels = 12,
                        .kernel_height = 3,
                        .kernel_width = 2,
                        .out_height = 4,
                        .out_width = 4};
  const std::vector<float> x = uniform(8 * 16 * 30, 1), w = uniform(12 * 16 * 6, 2),
                           dy = uniform(8 * 12 * 16, 3);
  struct Pass {
    void (*Kernels<float>::*run)(const ConvArgs<float>&);
    int64_t count, terms;
  };
  for (const Pass& pass : {Pass{&Kernels<float>::conv2d_forward, 8 * 12 * 16, 16 * 6},
                           Pass{&Kernels<float>::conv2d_backward_input, 8 * 16 * 30, 12 * 6},
                           Pass{&Kernels<float>::conv2d_backward_weight, 12 * 16 * 6, 8 * 16}}) {
    size_t different = 0;
    const double far =
        farthest(pass.count, different, [&](const Kernels<float>& kernels, float* out) {
          ConvArgs<float> args{.shape = shape};
          args.x = x.data(), args.w = w.data(), args.dy = dy.data(), args.out = out;
          args.accumulator = &fp32();
          (kernels.*pass.run)(args);
        });
    CHECK(far <= bound(pass.terms));
    CHECK(different == 1 + kOtherOrders);
  }
}

TEST_CASE("sums over channels and of rows") {
  const std::vector<float> x = uniform(64 * 3 * 4, 1);
  size_t different = 0;
  CHECK(farthest(3, different, [&](const Kernels<float>& kernels, float* y) {
          kernels.channel_sum(x.data(), y, 64, 3, 4, fp32());
        }) <= bound(256));
  CHECK(different > 1);
  CHECK(farthest(3, different, [&](const Kernels<float>& kernels, float* y) {
          kernels.channel_sum(x.data(), y, 1, 3, 256, fp32());
        }) <= bound(256));
  CHECK(different > 1);
  CHECK(farthest(3, different, [&](const Kernels<float>& kernels, float* y) {
          kernels.row_sums(x.data(), y, 3, 256, fp32());
        }) <= bound(256));
  CHECK(different > 1);
}

TEST_CASE("the statistics of a batch, every value in its own place") {
  constexpr int64_t kChannels = 3, kSpatial = 40;
  for (const int64_t batch : {1, 8}) {
    const int64_t count = batch * kChannels * kSpatial;
    const std::vector<float> x = uniform(count, 9), dy = uniform(count, 10);
    std::vector<float> mean(kChannels), inv_std(kChannels), dw(kChannels), db(kChannels);
    size_t different = 0;
    const double n = static_cast<double>(batch * kSpatial);
    // y is x times about sqrt(3): variance 1/3.
    const double forward = farthest(count, different, [&](const Kernels<float>& kernels, float* y) {
      BatchNormArgs<float> args{};
      args.batch = batch, args.channels = kChannels, args.spatial = kSpatial;
      args.eps = 1e-5, args.training = true;
      args.x = x.data(), args.y = y, args.mean = mean.data(), args.inv_std = inv_std.data();
      args.accumulator = &fp32();
      kernels.batch_norm(args);
    });
    CHECK(forward <= 2 * bound(batch * kSpatial) / n);
    CHECK(different > 1);
    const double backward =
        farthest(count, different, [&](const Kernels<float>& kernels, float* dx) {
          BatchNormBackwardArgs<float> args{};
          args.batch = batch, args.channels = kChannels, args.spatial = kSpatial;
          args.training = true, args.x = x.data(), args.dy = dy.data();
          args.mean = mean.data(), args.inv_std = inv_std.data();
          args.dx = dx, args.dweight = dw.data(), args.dbias = db.data();
          args.accumulator = &fp32();
          kernels.batch_norm_backward(args);
        });
    CHECK(backward <= 2 * 2 * bound(batch * kSpatial) / n);
    CHECK(different > 1);
  }
}

}  // namespace
}  // namespace lockstep

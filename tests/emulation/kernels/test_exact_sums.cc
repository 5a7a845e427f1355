// Sampled sums: the counts by hand, the terms of every pass of a convolution against the kernels.
#include "emulation/kernels/exact_sums.h"

#include <doctest/doctest.h>

#include "emulation/kernels/scalar/kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

SumTerms terms_of(const std::vector<double>& products) {
  SumTerms terms;
  for (const double p : products) terms.add(p, 1);
  return terms;
}

TEST_CASE("hand-checked: swamped addends, and the error against the exact sum") {
  const Format& fp16 = find_format("fp16");
  AccumulatorHealth health;
  // ulp(2048) = 2 in FP16: 0.75 is below half of it, 1 is not; zeros are not addends.
  add_sample(terms_of({2048, 0.75, 0, 1, -4}), 2044, fp16, health);
  CHECK(health.samples == 1);
  CHECK(health.compared == 1);
  CHECK(health.addends == 4);
  CHECK(health.swamped == 1);
  CHECK(health.exact_sq == 2045.75 * 2045.75);
  CHECK(health.err_sq == 1.75 * 1.75);
  CHECK(health.err_max_share == 1.75 / 2053.75);
  // An infinite result is a sample that cannot be compared.
  add_sample(terms_of({65504, 65504}), HUGE_VAL, fp16, health);
  CHECK(health.samples == 2);
  CHECK(health.compared == 1);
  CHECK(health.addends == 4);
}

TEST_CASE("the exact sum survives what a double loses") {
  AccumulatorHealth health;
  add_sample(terms_of({0x1p60, 1, -0x1p60}), 0, find_format("fp32"), health);
  CHECK(health.exact_sq == 1);
  CHECK(health.err_sq == 1);
}

TEST_CASE("gemm: the terms of every output add up to it, transposed or not") {
  constexpr int64_t kM = 3, kN = 5, kK = 7;
  const std::vector<double> a = make_data<double>(static_cast<size_t>(kM * kK), DataKind::kSmall,
                                                  find_format("fp64"), 1),
                            b = make_data<double>(static_cast<size_t>(kK * kN), DataKind::kSmall,
                                                  find_format("fp64"), 2);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      std::vector<double> c(kM * kN);
      GemmArgs<double> args{.transpose_a = ta, .transpose_b = tb, .m = kM, .n = kN, .k = kK};
      args.a = a.data(), args.lda = ta ? kM : kK;
      args.b = b.data(), args.ldb = tb ? kK : kN;
      args.c = c.data(), args.ldc = kN;
      args.accumulator = &find_accumulator("fp64_fused");
      scalar_kernels().f64.gemm(args);
      SumTerms terms;
      for (int64_t i = 0; i < kM * kN; ++i) {
        CHECK(sum_terms(args, i, terms) == c[static_cast<size_t>(i)]);
        double sum = 0;
        for (size_t k = 0; k < terms.a.size(); ++k) sum = std::fma(terms.a[k], terms.b[k], sum);
        CHECK(sum == c[static_cast<size_t>(i)]);
      }
    }
  }
}

// The fused chain over the terms, in their order, gives the kernel's bits.
void check_conv(const ConvShape& shape, int64_t groups) {
  const ConvShape& s = shape;
  const int64_t x_size = s.batch * s.in_channels * s.in_height * s.in_width;
  const int64_t w_size = s.out_channels * s.in_channels / groups * s.kernel_height * s.kernel_width;
  const int64_t y_size = s.batch * s.out_channels * s.out_height * s.out_width;
  const std::vector<double> x = make_data<double>(static_cast<size_t>(x_size), DataKind::kSmall,
                                                  find_format("fp64"), 3),
                            w = make_data<double>(static_cast<size_t>(w_size), DataKind::kSmall,
                                                  find_format("fp64"), 4),
                            dy = make_data<double>(static_cast<size_t>(y_size), DataKind::kSmall,
                                                   find_format("fp64"), 5);
  for (const ConvPass pass :
       {ConvPass::kForward, ConvPass::kBackwardInput, ConvPass::kBackwardWeight}) {
    const int64_t size = pass == ConvPass::kForward         ? y_size
                         : pass == ConvPass::kBackwardInput ? x_size
                                                            : w_size;
    std::vector<double> out(static_cast<size_t>(size));
    ConvArgs<double> args{.shape = shape};
    args.out = out.data();
    if (pass != ConvPass::kBackwardInput) args.x = x.data();
    if (pass != ConvPass::kBackwardWeight) args.w = w.data();
    if (pass != ConvPass::kForward) args.dy = dy.data();
    args.accumulator = &find_accumulator("fp64_fused");
    scalar_kernels().f64.grouped_conv2d(scalar_kernels().f64, pass, args, groups);
    SumTerms terms;
    int64_t different = 0;
    for (int64_t i = 0; i < size; ++i) {
      const double computed = sum_terms(args, pass, groups, i, terms);
      double sum = 0;
      for (size_t k = 0; k < terms.a.size(); ++k) sum = std::fma(terms.a[k], terms.b[k], sum);
      different += computed != out[static_cast<size_t>(i)] || sum != computed;
    }
    CAPTURE(static_cast<int>(pass));
    CAPTURE(groups);
    CHECK(different == 0);
  }
}

TEST_CASE("convolutions: the terms of every output add up to it, in all passes and groups") {
  ConvShape shape{2, 4, 9, 8, 6, 3, 2, 0, 0};
  shape.stride_h = 2, shape.pad_h = 1, shape.pad_w = 2, shape.dilation_w = 2;
  shape.out_height = (9 + 2 - 2 - 1) / 2 + 1;
  shape.out_width = (8 + 4 - 2 - 1) / 1 + 1;
  check_conv(shape, 1);
  check_conv(shape, 2);
}

}  // namespace
}  // namespace lockstep

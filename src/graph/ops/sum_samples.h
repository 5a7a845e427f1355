// Checks the sums of products of ops. run_product and run_conv call the kernel; if OpCall::health
// is set, they then recompute outputs, drawn by the run's seed, exactly
// (emulation/kernels/exact_sums.h). For ops/*.cc and for sums that are formed block by block.
#pragma once

#include "emulation/kernels/exact_sums.h"
#include "emulation/kernels/rounded_gemm.h"
#include "src/core/random.h"
#include "src/graph/op.h"

namespace lockstep {

// Outputs of a product that are recomputed.
inline constexpr int64_t kSampledSums = 64;

// `terms_of(index, terms)` fills the terms of output `index` of `count`, and returns the output.
template <typename TermsOf>
void sample_sums(const OpCall& call, int64_t count, TermsOf terms_of) {
  if (call.health == nullptr || count == 0) return;
  const RandomStream stream(call.random.seed, RandomPurpose::kSampledSums, call.random.node);
  SumTerms terms;
  for (int64_t i = 0; i < kSampledSums; ++i) {
    const uint32_t drawn = stream.bits(call.random.step * kSampledSums + static_cast<uint64_t>(i));
    const auto index =
        static_cast<int64_t>(static_cast<uint64_t>(drawn) * static_cast<uint64_t>(count) >> 32);
    const double computed = terms_of(index, terms);
    add_sample(terms, computed, *call.gemm_accumulator.format, *call.health);
  }
}

template <typename T>
void run_product(const OpCall& call, const GemmArgs<T>& gemm) {
  call.kernels.of<T>().gemm(gemm);
  sample_sums(call, gemm.m * gemm.n,
              [&](int64_t i, SumTerms& terms) { return sum_terms(gemm, i, terms); });
}

// For a product that is the op's output 0, with nothing added to it. An engine whose device forms
// the product rounds it there.
template <typename T>
void run_output_product(const OpCall& call, const GemmArgs<T>& gemm) {
  if (call.output_rounding == nullptr) return run_product(call, gemm);
  rounded_gemm(call.kernels.of<T>(), RoundedGemmArgs<T>{gemm, {}, {}, call.output_rounding->how});
  call.output_rounding->done = true;
}

template <typename T>
void run_products(const OpCall& call, const StackedGemm<T>& stack) {
  const Kernels<T>& kernels = call.kernels.of<T>();
  kernels.stacked_gemm(kernels, stack);
  const int64_t size = stack.product.m * stack.product.n;
  sample_sums(call, stack.count * size, [&](int64_t i, SumTerms& terms) {
    return sum_terms(stack.one(i / size), i % size, terms);
  });
}

template <typename T>
void run_conv(const OpCall& call, ConvPass pass, const ConvArgs<T>& conv, int64_t groups) {
  const Kernels<T>& kernels = call.kernels.of<T>();
  kernels.grouped_conv2d(kernels, pass, conv, groups);
  sample_sums(call, call.outputs[0]->size(),
              [&](int64_t i, SumTerms& terms) { return sum_terms(conv, pass, groups, i, terms); });
}

}  // namespace lockstep

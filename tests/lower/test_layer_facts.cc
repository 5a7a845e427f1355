// Facts for advice: extents of products, their alignment, a lane's memory. Checked by hand.
#include <doctest/doctest.h>

#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/graph/site.h"
#include "src/lower/layer_facts.h"
#include "src/lower/lower.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

// x (6,10) -> linear 7 -> relu -> mse against (6,7).
Graph small_step() {
  GraphBuilder b("small");
  const Value x = b.input("x", {{6, 10}});
  const Value y = b.input("y", {{6, 7}});
  const Value h = b.relu("relu", b.linear("fc", x, 7));
  b.set_loss(b.op("mse_loss", {h, y}, {}, "loss"));
  return differentiate(b.finish());
}

TEST_CASE("product facts: extents, what is unaligned, arithmetic and elements") {
  const auto facts = product_facts(small_step());
  REQUIRE(facts.size() == 2);  // the input needs no gradient
  CHECK(facts[0].op == "linear");
  CHECK(facts[0].layer == "fc");
  CHECK_FALSE(facts[0].backward);
  CHECK(facts[0].shape.m == 6);
  CHECK(facts[0].shape.n == 7);
  CHECK(facts[0].shape.k == 10);
  CHECK(facts[0].unaligned_16bit == "mnk");
  CHECK(facts[0].multiply_adds == 6 * 7 * 10);
  CHECK(facts[0].elements == 6 * 10 + 10 * 7 + 6 * 7);
  CHECK(facts[1].op == "linear_backward_weight");
  CHECK(facts[1].backward);
  CHECK(facts[1].shape.m == 7);
  CHECK(facts[1].shape.n == 10);
  CHECK(facts[1].shape.k == 6);
}

TEST_CASE("product facts: multiples of 8 fit 16-bit tiles, of 16 FP8 tiles") {
  GraphBuilder b("aligned");
  const Value x = b.input("x", {{16, 24}});
  const Value y = b.input("y", {{16, 32}});
  b.set_loss(b.op("mse_loss", {b.linear("fc", x, 32), y}, {}, "loss"));
  const auto facts = product_facts(differentiate(b.finish()));
  CHECK(facts.at(0).unaligned_16bit.empty());
  CHECK(facts.at(0).unaligned_fp8 == "k");
}

TEST_CASE("product facts: a convolution is aligned if its channels are") {
  GraphBuilder b("patches");
  const Value x = b.input("x", {{2, 3, 28, 28}}), t = b.input("t", {{2, 24, 7, 7}});
  const Value y = b.conv2d("patches", x, 24, /*kernel=*/4, /*stride=*/4);
  b.set_loss(b.op("mse_loss", {y, t}, {}, "loss"));
  const auto facts = product_facts(differentiate(b.finish()));
  REQUIRE(facts.size() == 2);  // the images need no gradient
  for (const ProductFact& fact : facts) {
    // m = 2 7 7, n = 24, k = 3 4 4 = 48: by these only m would be unaligned.
    CHECK(fact.shape.in_channels == 3);
    CHECK(fact.shape.out_channels == 24);
    CHECK(fact.unaligned_16bit == "c");
    CHECK(fact.unaligned_fp8 == "co");
    CHECK(fact.bytes(16) == 2 * (98 * 48 + 48 * 24 + 98 * 24));
  }
}

TEST_CASE("every op with a gemm accumulator lists its products") {
  for (const OpDef& op : ops()) {
    CAPTURE(op.name);
    CHECK(op.sums.of_products == (op.sums.products != nullptr));
  }
}

TEST_CASE("memory facts: formats, masters and state by the policy, activations once") {
  const Graph step = small_step();
  const SiteTable sites = make_sites(step, 2);
  const auto of = [&](const char* policy) {
    const Policy p = find_policy(policy);
    return memory_facts(step, lower(step, sites, p), p, [](const Parameter& parameter) {
      return std::vector<Shape>(2, parameter.type.shape);
    });
  };
  constexpr int64_t kWeights = 7 * 10 + 7;
  const MemoryFacts fp32 = of("fp32");
  CHECK(fp32.weights == 4 * kWeights);
  CHECK(fp32.master_weights == 0);
  CHECK(fp32.gradients == 4 * kWeights);
  CHECK(fp32.optimizer_state == 2 * 4 * kWeights);
  // Kept: relu's output, for its own gradient and the loss's, 6x7.
  CHECK(fp32.activations == 4 * 6 * 7);
  // autocast fp16: relu's output is FP16; x is cast to FP16 (6x10) and kept for dw. The loss
  // computes in FP32, but reads relu's FP16 output: widening needs no copy.
  const MemoryFacts fp16 = of("torch-autocast-fp16");
  CHECK(fp16.weights == 4 * kWeights);
  CHECK(fp16.activations == 2 * 6 * 10 + 2 * 6 * 7);
  CHECK(memory_facts_from_json(to_json(fp16)) == fp16);
  CHECK(memory_facts_from_json(R"({"weights":1,"master_weights":2,"gradients":3,)"
                               R"("optimizer_state":4,"activations":5})") ==
        MemoryFacts{1, 2, 3, 4, 0, 5});
}

TEST_CASE("memory facts: Kahan's terms, and masks and indices as frameworks keep them") {
  GraphBuilder b("kept");
  const Value x = b.parameter("x", {2, 3, 4, 4}), t = b.input("t", {{2, 3, 2, 2}});
  const Value y = b.max_pool2d("pool", b.dropout("drop", x, 0.5), 2, 2);
  b.set_loss(b.op("mse_loss", {y, t}, {}, "loss"));
  const Graph step = differentiate(b.finish());
  const SiteTable sites = make_sites(step, 1);
  const auto of = [&](bool kahan, bool masters) {
    Policy p = find_policy("pure-fp16");
    if (kahan) p.update_rounding = UpdateRounding::kKahan;
    p.master_weights = masters;
    return memory_facts(step, lower(step, sites, p), p, [](const Parameter& parameter) {
      return std::vector<Shape>{parameter.type.shape};
    });
  };
  constexpr int64_t kElements = 2 * 3 * 4 * 4, kPooled = 2 * 3 * 2 * 2;
  CHECK(of(false, false).kahan_terms == 0);
  CHECK(of(true, false).kahan_terms == 2 * kElements);
  CHECK(of(true, true).kahan_terms == of(true, true).master_weights);
  // The mask, the indices, and the pooled values, which the loss's gradient reads.
  CHECK(of(false, false).activations == kElements + 8 * kPooled + 2 * kPooled);
}

}  // namespace
}  // namespace lockstep

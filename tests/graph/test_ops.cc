// Shape rules (good and bad), and every op's gradient against central differences in FP64.
#include <doctest/doctest.h>

#include <set>

#include "src/core/error.h"
#include "src/graph/builder.h"
#include "src/graph/infer.h"
#include "tests/graph/one_op.h"
#include "tests/graph/run_graph.h"

namespace lockstep {
namespace {

using testing::floats;
using testing::gradient_error;
using testing::has;
using testing::infer;
using testing::ints;
using testing::kGradientTolerance;
using testing::refusal;

TEST_CASE("op table: names are unique, resolve to their row, and every row is complete") {
  std::set<std::string_view> names;
  for (const OpDef& op : ops()) {
    CAPTURE(op.name);
    CHECK(names.insert(op.name).second);
    CHECK(&find_op(op.name) == &op);
    CHECK_FALSE(op.help.empty());
    CHECK_FALSE(op.source.empty());
    CHECK(op.min_inputs >= 1);
    CHECK(op.max_inputs >= op.min_inputs);
    CHECK((op.infer != nullptr));
    CHECK((op.run != nullptr));
  }
  CHECK_THROWS_WITH_AS(find_op("conv2"), doctest::Contains("did you mean 'conv2d'?"), InputError);
}

TEST_CASE("op table: autocast classes are those of torch's CUDA lists") {
  for (const char* op : {"linear", "matmul", "conv2d"}) {
    CHECK(find_op(op).cast_class == CastClass::kLowPrecision);
    CHECK(find_op(op).sums.of_products);
  }
  for (const char* op : {"softmax", "cross_entropy", "mse_loss"}) {
    CHECK(find_op(op).cast_class == CastClass::kFp32);
  }
  for (const char* op : {"batch_norm", "relu", "max_pool2d", "add", "mul", "reshape"}) {
    CHECK(find_op(op).cast_class == CastClass::kFollow);
  }
  // Bias gradients are plain sums, weight and input gradients are sums of products.
  CHECK_FALSE(find_op("linear_backward_bias").sums.of_products);
  CHECK_FALSE(find_op("conv2d_backward_bias").sums.of_products);
  CHECK(find_op("linear_backward_weight").sums.of_products);
  CHECK(find_op("conv2d_backward_input").sums.of_products);
}

TEST_CASE("shape rules: accepted operands") {
  CHECK(infer("linear", {floats({5, 4, 7}), floats({3, 7}), floats({3})})[0] == floats({5, 4, 3}));
  CHECK(infer("linear", {floats({7}), floats({3, 7})})[0] == floats({3}));
  CHECK(infer("matmul", {floats({2, 3, 4}), floats({2, 4, 5})})[0] == floats({2, 3, 5}));
  CHECK(infer("matmul", {floats({4, 3}), floats({5, 4})},
              {{"transpose_a", true}, {"transpose_b", true}})[0] == floats({3, 5}));
  // floor((7 + 2 * 1 - 2 * (3 - 1) - 1) / 2) + 1 = 3, floor((8 + 0 - (2 - 1) - 1) / 3) + 1 = 3
  CHECK(infer("conv2d", {floats({2, 3, 7, 8}), floats({4, 3, 3, 2}), floats({4})},
              {{"stride", Shape{2, 3}}, {"padding", Shape{1, 0}}, {"dilation", Shape{2, 1}}})[0] ==
        floats({2, 4, 3, 3}));
  const auto pooled =
      infer("max_pool2d", {floats({2, 3, 7, 7})},
            {{"kernel", Shape{3, 3}}, {"stride", Shape{2, 2}}, {"padding", Shape{1, 1}}});
  CHECK(pooled == std::vector<TensorType>{floats({2, 3, 4, 4}), ints({2, 3, 4, 4})});
  const auto normalised = infer(
      "batch_norm", {floats({2, 3, 4, 4}), floats({3}), floats({3}), floats({3}), floats({3})});
  CHECK(normalised.size() == 5);
  CHECK(normalised[0] == floats({2, 3, 4, 4}));
  CHECK(normalised[4] == floats({3}));
  CHECK(infer("add", {floats({4, 1, 3}), floats({5, 1})})[0] == floats({4, 5, 3}));
  CHECK(infer("mul", {floats({}), floats({2})})[0] == floats({2}));
  CHECK(infer("sum_to", {floats({4, 5, 3})}, {{"shape", Shape{5, 1}}})[0] == floats({5, 1}));
  CHECK(infer("reshape", {floats({4, 6})}, {{"shape", Shape{2, 12}}})[0] == floats({2, 12}));
  CHECK(infer("cross_entropy", {floats({8, 10}), ints({8})})[0] == floats({}));
  CHECK(infer("mse_loss", {floats({8, 10}), floats({8, 10})})[0] == floats({}));
  CHECK(infer("softmax", {floats({8, 10})}, {{"dim", int64_t{1}}})[0] == floats({8, 10}));
}

TEST_CASE("shape rules: refusals give the reason") {
  CHECK(has(refusal("linear", {floats({5, 7}), floats({3, 8})}), "must be [3, 7]"));
  CHECK(has(refusal("linear", {floats({5, 7}), floats({3, 7}), floats({4})}), "must be [3]"));
  CHECK(has(refusal("linear", {floats({5, 7})}), "has 1 operands, must have 2 to 3"));
  CHECK(has(refusal("linear", {ints({5, 7}), floats({3, 7})}), "must be floating"));
  CHECK(has(refusal("matmul", {floats({2, 3, 4}), floats({3, 4, 5})}), "do not broadcast"));
  CHECK(has(refusal("matmul", {floats({4}), floats({4, 5})}), "at least 2 dimensions"));
  CHECK(has(refusal("matmul", {floats({3, 4}), floats({5, 6})}), "inner extents are 4 and 5"));
  const TensorType image = floats({2, 4, 7, 7}), weight = floats({6, 4, 3, 3});
  CHECK(has(refusal("conv2d", {image, floats({6, 2, 3, 3})}), "expects 2"));
  CHECK(has(refusal("conv2d", {image, weight}, {{"groups", int64_t{2}}}), "expects 8 in 2"));
  CHECK(has(refusal("conv2d", {image, weight}, {{"groups", int64_t{0}}}), "at least 1"));
  CHECK(has(refusal("conv2d", {image, floats({6, 1, 3, 3})}, {{"groups", int64_t{4}}}),
            "must be a multiple of the 4 groups"));
  CHECK(has(refusal("conv2d", {image, weight}, {{"stride", Shape{0, 1}}}), "at least 1"));
  CHECK(has(refusal("conv2d", {image, weight}, {{"padding", Shape{1, 1, 1}}}), "1, 2 or 4"));
  CHECK(has(refusal("conv2d", {image, floats({6, 4, 9, 9})}), "does not fit"));
  CHECK(has(refusal("conv2d", {image, weight}, {{"strides", Shape{1, 1}}}),
            "did you mean 'stride'?"));
  CHECK(has(refusal("conv2d", {image, weight}, {{"stride", std::string("same")}}),
            "'stride' must be a list of integers"));
  CHECK(has(refusal("max_pool2d", {image}, {{"kernel", Shape{2, 2}}, {"padding", Shape{2, 2}}}),
            "half the kernel"));
  CHECK(has(
      refusal("batch_norm", {floats({2, 3}), floats({3}), floats({3}), floats({3}), floats({2})}),
      "operand 4 is [2], must be [3]"));
  CHECK(has(
      refusal("batch_norm", {floats({1, 3}), floats({3}), floats({3}), floats({3}), floats({3})}),
      "more than one value per channel"));
  CHECK(has(refusal("batch_norm", {floats({4, 3}), floats({3}), floats({3})}),
            "attribute 'affine' false"));
  CHECK(has(refusal("batch_norm", {floats({4, 3}), floats({3}), floats({3})},
                    {{"affine", false}, {"cumulative", true}}),
            "needs num_batches_tracked"));
  CHECK(has(refusal("batch_norm", {floats({4, 3}), floats({3}), floats({3}), ints({2})},
                    {{"affine", false}}),
            "operand 3 is [2], must be []"));
  CHECK(has(refusal("add", {floats({4, 2}), floats({3})}), "do not broadcast"));
  CHECK(has(refusal("sum_to", {floats({4, 2})}, {{"shape", Shape{3}}}), "do not broadcast"));
  CHECK(has(refusal("sum_to", {floats({4, 1})}, {{"shape", Shape{4, 2}}}), "must broadcast"));
  CHECK(has(refusal("reshape", {floats({4, 6})}, {{"shape", Shape{5, 5}}}), "25 elements"));
  CHECK(has(refusal("softmax", {floats({4, 6})}, {{"dim", int64_t{2}}}), "must be -2 to 1"));
  CHECK(has(refusal("cross_entropy", {floats({8, 10}), ints({7})}), "must be [8]"));
  CHECK(has(refusal("cross_entropy", {floats({8, 10}), floats({8})}), "integer"));
  CHECK(has(refusal("mse_loss", {floats({8, 10}), floats({8})}), "the shape of x"));
}

// loss = mse(op(parameters...), an input), so that the gradient that reaches the op is general.
double op_gradient_error(std::string_view op, const std::vector<Shape>& shapes,
                         const Attributes& attributes = {}) {
  GraphBuilder b("op");
  std::vector<Value> operands;
  for (size_t i = 0; i < shapes.size(); ++i) {
    operands.push_back(b.parameter("w" + std::to_string(i), shapes[i]));
  }
  const Value y = b.op(op, operands, attributes, "");
  const Value target = b.input("target", b.graph().type_of(y));
  b.set_loss(b.op("mse_loss", {y, target}, {}, ""));
  return gradient_error(b.finish());
}

TEST_CASE("gradients: sums of products against central differences") {
  CHECK(op_gradient_error("linear", {{4, 5}, {3, 5}, {3}}) <= kGradientTolerance);
  CHECK(op_gradient_error("linear", {{2, 3, 5}, {4, 5}}) <= kGradientTolerance);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      CAPTURE(ta);
      CAPTURE(tb);
      const Shape a = ta ? Shape{2, 4, 3} : Shape{2, 3, 4};
      const Shape b = tb ? Shape{2, 5, 4} : Shape{2, 4, 5};
      CHECK(op_gradient_error("matmul", {a, b}, {{"transpose_a", ta}, {"transpose_b", tb}}) <=
            kGradientTolerance);
    }
  }
  for (const double scale : {1.0, 0.5}) {
    const Attributes scales = {{"alpha", scale}, {"beta", 1.5 * scale}};
    CHECK(op_gradient_error("addmm", {{3, 4}, {4, 5}, {5}}, scales) <= kGradientTolerance);
    CHECK(op_gradient_error("addmm", {{2, 3, 4}, {2, 4, 5}, {2, 1, 5}}, scales) <=
          kGradientTolerance);
  }
  CHECK(op_gradient_error("conv2d", {{2, 3, 5, 6}, {4, 3, 3, 2}, {4}}) <= kGradientTolerance);
  CHECK(op_gradient_error(
            "conv2d", {{2, 2, 7, 6}, {3, 2, 3, 2}, {3}},
            {{"stride", Shape{2, 3}}, {"padding", Shape{1, 2}}, {"dilation", Shape{2, 1}}}) <=
        kGradientTolerance);
}

TEST_CASE("gradients: elementwise, with and without broadcasting") {
  for (const char* op : {"add", "mul"}) {
    CAPTURE(op);
    CHECK(op_gradient_error(op, {{3, 4}, {3, 4}}) <= kGradientTolerance);
    CHECK(op_gradient_error(op, {{3, 4}, {4}}) <= kGradientTolerance);
    CHECK(op_gradient_error(op, {{}, {3, 4}}) <= kGradientTolerance);
    // Two reduced groups around a kept one, and two kept groups around reduced ones.
    CHECK(op_gradient_error(op, {{2, 3, 4, 2}, {3, 1, 1}}) <= kGradientTolerance);
    CHECK(op_gradient_error(op, {{3, 2, 4, 2}, {3, 1, 4, 1}}) <= kGradientTolerance);
    CHECK(op_gradient_error(op, {{3, 1, 4, 1}, {1, 2, 1, 5}}) <= kGradientTolerance);
  }
  CHECK(op_gradient_error("relu", {{3, 4}}) <= kGradientTolerance);
  CHECK(op_gradient_error("reshape", {{3, 4}}, {{"shape", Shape{2, 6}}}) <= kGradientTolerance);
  CHECK(op_gradient_error("softmax", {{3, 5}}) <= kGradientTolerance);
}

TEST_CASE("gradients: pooling, overlapping windows and padding included") {
  CHECK(op_gradient_error("max_pool2d", {{2, 2, 4, 6}}, {{"kernel", Shape{2, 3}}}) <=
        kGradientTolerance);
  CHECK(op_gradient_error(
            "max_pool2d", {{2, 2, 5, 5}},
            {{"kernel", Shape{3, 3}}, {"stride", Shape{2, 2}}, {"padding", Shape{1, 1}}}) <=
        kGradientTolerance);
}

TEST_CASE("gradients: batch_norm without weight and bias") {
  GraphBuilder b("bn");
  const Value x = b.parameter("x", {3, 2, 2});
  const Value mean = b.buffer("mean", {2}), var = b.buffer("var", {2});
  const Value y = b.op("batch_norm", {x, mean, var}, {{"affine", false}}, "bn");
  b.set_loss(b.op("mse_loss", {y, b.input("target", {{3, 2, 2}})}, {}, "loss"));
  CHECK(gradient_error(b.finish()) <= kGradientTolerance);
}

TEST_CASE("gradients: batch_norm with batch statistics and with running ones") {
  for (const bool training : {true, false}) {
    CAPTURE(training);
    GraphBuilder b("bn");
    const Value x = b.parameter("x", {3, 2, 4});
    const Value w = b.parameter("w", {2}), bias = b.parameter("bias", {2});
    const Value mean = b.buffer("mean", {2}), var = b.buffer("var", {2});
    const Value y = b.op("batch_norm", {x, w, bias, mean, var}, {{"training", training}}, "bn");
    b.set_loss(b.op("mse_loss", {y, b.input("target", {{3, 2, 4}})}, {}, ""));
    CHECK(gradient_error(b.finish()) <= kGradientTolerance);
  }
}

TEST_CASE("gradients: losses") {
  CHECK(op_gradient_error("mse_loss", {{3, 4}, {3, 4}}) <= kGradientTolerance);
  GraphBuilder b("ce");
  const Value x = b.parameter("x", {5, 3});
  b.set_loss(b.op("cross_entropy", {x, b.input("labels", {{5}, ElementType::kInt})}, {}, ""));
  CHECK(gradient_error(b.finish()) <= kGradientTolerance);
}

TEST_CASE("cross_entropy: a target outside [0, C) is an input error that names it") {
  GraphBuilder b("ce");
  const Value x = b.parameter("x", {3, 4});
  b.set_loss(b.op("cross_entropy", {x, b.input("labels", {{3}, ElementType::kInt})}, {}, ""));
  const Graph graph = b.finish();
  for (const int32_t bad : {-1, 4}) {
    testing::Values values = testing::make_values(graph, /*classes=*/4);
    values.at("in0").as<int32_t>()[2] = bad;
    CHECK_THROWS_WITH_AS(
        testing::run_graph(graph, values),
        doctest::Contains(("target 2 is " + std::to_string(bad) + ", must be in [0, 4)").c_str()),
        InputError);
  }
}

// Output 0 of one op on floating operands.
std::vector<double> run_one(std::string_view op, const std::vector<Tensor>& operands,
                            const Attributes& attributes) {
  GraphBuilder b("one");
  testing::Values values;
  std::vector<Value> ids;
  for (const Tensor& operand : operands) {
    ids.push_back(b.input("x", {operand.shape()}));
    values[ids.back()] = operand;
  }
  const Value y = b.op(op, ids, attributes, "");
  values = testing::run_graph(b.finish(), values);
  const auto out = values.at(y).as<double>();
  return std::vector<double>(out.begin(), out.end());
}

TEST_CASE("hand-checked: linear, matmul and conv2d add their bias; sum_to sums what was repeated") {
  using D = std::vector<double>;
  const Tensor x = Tensor::from<double>({2, 2}, {1, 2, 3, 4});
  CHECK(run_one("linear",
                {x, Tensor::from<double>({1, 2}, {10, 1}), Tensor::from<double>({1}, {0.5})},
                {}) == D{12.5, 34.5});
  CHECK(run_one("matmul", {x, Tensor::from<double>({2, 1}, {10, 1})}, {{"transpose_a", true}}) ==
        D{13, 24});
  CHECK(run_one("addmm", {x, Tensor::from<double>({2, 1}, {10, 1}), Tensor::from<double>({1}, {2})},
                {{"alpha", 0.5}, {"beta", 3.0}}) == D{12, 23});
  CHECK(run_one("conv2d",
                {Tensor::from<double>({1, 1, 1, 3}, {1, 2, 3}),
                 Tensor::from<double>({2, 1, 1, 2}, {1, 10, 2, 0}),
                 Tensor::from<double>({2}, {0.5, -1})},
                {}) == D{21.5, 32.5, 1, 3});
  CHECK(run_one("sum_to", {x}, {{"shape", Shape{2, 1}}}) == D{3, 7});
  CHECK(run_one("sum_to", {x}, {{"shape", Shape{}}}) == D{10});
  CHECK(run_one("mul", {x, Tensor::from<double>({2, 1}, {10, 1})}, {}) == D{10, 20, 3, 4});
  CHECK(run_one("reshape", {x}, {{"shape", Shape{4}}}) == D{1, 2, 3, 4});
  // Windows of 2 x 1 with stride (1, 2) on the padded rows -inf | 1 2 | 3 4 | -inf.
  CHECK(run_one("max_pool2d", {Tensor::from<double>({1, 1, 2, 2}, {1, 2, 3, 4})},
                {{"kernel", Shape{2, 1}}, {"stride", Shape{1, 2}}, {"padding", Shape{1, 0}}}) ==
        D{1, 3, 3});
}

TEST_CASE("conv2d: stride, padding and dilation follow the formula in both directions") {
  // y[p,q] = sum over r, s of x[2p - 1 + 2r, 3q - 2 + s] w[r,s], on small integers: exact.
  constexpr int64_t kHeight = 7, kWidth = 6, kR = 3, kS = 2, kP = 3, kQ = 3;
  std::vector<double> x(kHeight * kWidth), w(kR * kS), y(kP * kQ, 0);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i + 1);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<double>(1 << (2 * i));
  for (int64_t p = 0; p < kP; ++p) {
    for (int64_t q = 0; q < kQ; ++q) {
      for (int64_t r = 0; r < kR; ++r) {
        for (int64_t s = 0; s < kS; ++s) {
          const int64_t i = 2 * p - 1 + 2 * r, j = 3 * q - 2 + s;
          if (i < 0 || i >= kHeight || j < 0 || j >= kWidth) continue;
          y[static_cast<size_t>(p * kQ + q)] +=
              x[static_cast<size_t>(i * kWidth + j)] * w[static_cast<size_t>(r * kS + s)];
        }
      }
    }
  }
  CHECK(run_one("conv2d",
                {Tensor::from<double>({1, 1, kHeight, kWidth}, x),
                 Tensor::from<double>({1, 1, kR, kS}, w)},
                {{"stride", Shape{2, 3}}, {"padding", Shape{1, 2}}, {"dilation", Shape{2, 1}}}) ==
        y);
}

}  // namespace
}  // namespace lockstep

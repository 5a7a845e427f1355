// Ops that move, normalise, pick, pool, resize and convolve: shape rules with their refusals,
// values by hand, and gradients against central differences in FP64.
#include <doctest/doctest.h>

#include "src/core/error.h"
#include "src/graph/builder.h"
#include "src/graph/infer.h"
#include "tests/graph/one_op.h"
#include "tests/graph/run_graph.h"

namespace lockstep {
namespace {

using testing::floats;
using testing::infer;
using testing::ints;
using testing::kGradientTolerance;
using D = std::vector<double>;

void check_refusal(const std::string& part, std::string_view op, std::vector<TensorType> inputs,
                   Attributes attributes = {}) {
  CHECK_THROWS_WITH_AS(infer(op, std::move(inputs), std::move(attributes)),
                       doctest::Contains(part.c_str()), InputError);
}

// Output 0 of an op on these tensors (kF64 or kI32).
D output_of(std::string_view op, const std::vector<Tensor>& operands,
            const Attributes& attributes) {
  return testing::numbers(testing::run_op(op, operands, attributes)[0]);
}

// loss = mse(op(parameters..., integer inputs...), an input); integers count modulo `classes`.
double shape_op_error(std::string_view op, const std::vector<Shape>& shapes,
                      const Attributes& attributes = {}, const std::vector<Shape>& indices = {},
                      int32_t classes = 3) {
  GraphBuilder b("op");
  std::vector<Value> operands;
  for (size_t i = 0; i < shapes.size(); ++i) {
    operands.push_back(b.parameter("w" + std::to_string(i), shapes[i]));
  }
  for (const Shape& shape : indices) operands.push_back(b.input("index", ints(shape)));
  const Value y = b.op(op, operands, attributes, "");
  const Value target = b.input("target", b.graph().type_of(y));
  b.set_loss(b.op("mse_loss", {y, target}, {}, ""));
  return testing::gradient_error(b.finish(), classes);
}

Tensor counting(const Shape& shape) {
  Tensor tensor(shape, Container::kF64);
  double next = 1;
  for (double& value : tensor.as<double>()) value = next++;
  return tensor;
}

}  // namespace

TEST_CASE("shape ops: refusals give the reason") {
  const TensorType x = floats({2, 3, 4}), image = floats({2, 4, 7, 7});
  check_refusal("each of the 3 dimensions", "permute", {x}, {{"dims", Shape{0, 1, 1}}});
  check_refusal("each of the 3 dimensions", "permute", {x}, {{"dims", Shape{0, 1}}});
  check_refusal("must broadcast", "expand", {x}, {{"shape", Shape{3, 4}}});
  check_refusal("at least 1", "expand", {x}, {{"shape", Shape{-1, 2, 3, 4}}});
  check_refusal("are none", "slice", {x}, {{"dim", int64_t{1}}, {"start", int64_t{3}}});
  check_refusal("'step' is 0", "slice", {x}, {{"step", int64_t{0}}});
  check_refusal("operand 1 is f32[2, 3, 5]", "cat", {x, floats({2, 3, 5})}, {{"dim", int64_t{1}}});
  check_refusal("must agree in type", "cat", {x, ints({2, 3, 4})});
  check_refusal("two for each", "pad", {x}, {{"pads", Shape{1, 2, 3}}});
  check_refusal("leaves [2, 3, 0]", "pad", {x}, {{"pads", Shape{-2, -2}}});
  check_refusal("multiple of factor^2 = 9", "pixel_shuffle", {image}, {{"factor", int64_t{3}}});
  check_refusal("no larger extent", "gather", {x, ints({3, 3, 4})}, {{"dim", int64_t{1}}});
  check_refusal("integer tensor", "gather", {x, x});
  check_refusal("no larger extent", "scatter_add", {x, ints({2, 3, 4})},
                {{"shape", Shape{2, 2, 4}}});
  check_refusal("shape of the index", "scatter_add", {x, ints({1, 3, 4})},
                {{"shape", Shape{2, 3, 4}}});
  check_refusal("one slice for each place", "index_add", {x, ints({3})},
                {{"shape", Shape{5, 3, 4}}});
  check_refusal("(J)", "index_select", {x, ints({2, 2})});
  check_refusal("'padding_idx' is 5", "embedding", {floats({5, 2}), ints({3})},
                {{"padding_idx", int64_t{5}}});
  check_refusal("'normalized_ndim' is 4", "layer_norm", {x}, {{"normalized_ndim", int64_t{4}}});
  check_refusal("must be [4]", "layer_norm", {x, floats({3})});
  check_refusal("must divide the 4 channels", "group_norm", {image}, {{"groups", int64_t{3}}});
  check_refusal("half the kernel", "avg_pool2d", {image},
                {{"kernel", int64_t{2}}, {"padding", int64_t{2}}});
  check_refusal("contains only padding", "max_pool2d", {floats({1, 1, 1, 9})},
                {{"kernel", Shape{2, 1}}, {"padding", Shape{1, 0}}, {"dilation", Shape{2, 1}}});
  check_refusal("must be at least 1", "adaptive_avg_pool2d", {image}, {{"size", Shape{0, 1}}});
  check_refusal("neither", "upsample_nearest2d", {image});
  check_refusal("both", "upsample_bilinear2d", {image}, {{"size", Shape{2, 2}}, {"scale", 2.0}});
  check_refusal("0 rows", "upsample_nearest2d", {image}, {{"scale", 0.1}});
  check_refusal("'output_padding' is [2, 2]", "conv_transpose2d", {image, floats({4, 1, 3, 3})},
                {{"output_padding", int64_t{2}}});
  check_refusal("first extent of the weight", "conv_transpose2d", {image, floats({3, 1, 3, 3})});
}

TEST_CASE("max_pool2d: ceil mode drops a window that would begin beyond the image") {
  const auto rows = [](int64_t in, int64_t kernel, int64_t stride, int64_t pad) {
    return infer("max_pool2d", {floats({1, 1, in, in})},
                 {{"kernel", kernel}, {"stride", stride}, {"padding", pad}, {"ceil_mode", true}})[0]
        .shape[2];
  };
  CHECK(rows(5, 2, 2, 0) == 3);  // windows begin at 0, 2, 4
  CHECK(rows(4, 2, 2, 1) == 3);  // at -1, 1, 3
  CHECK(rows(3, 1, 3, 0) == 1);  // at 0; one at 3 would see nothing
}

TEST_CASE("shape ops: values by hand") {
  const Tensor x = counting({2, 3});
  CHECK(output_of("permute", {x}, {{"dims", Shape{1, 0}}}) == D{1, 4, 2, 5, 3, 6});
  CHECK(output_of("slice", {x},
                  {{"dim", int64_t{-1}}, {"start", int64_t{-3}}, {"step", int64_t{2}}}) ==
        D{1, 3, 4, 6});
  CHECK(output_of("cat", {x, counting({2, 1})}, {{"dim", int64_t{1}}}) ==
        D{1, 2, 3, 1, 4, 5, 6, 2});
  CHECK(output_of("pad", {x}, {{"pads", Shape{-1, 1, 1, 0}}, {"value", 9.0}}) ==
        D{9, 9, 9, 2, 3, 9, 5, 6, 9});
  CHECK(output_of("expand", {counting({2, 1})}, {{"shape", Shape{2, 2, 2}}}) ==
        D{1, 1, 2, 2, 1, 1, 2, 2});
  CHECK(output_of("gather", {x, Tensor::from<int32_t>({1, 3}, {1, 0, 1})}, {}) == D{4, 2, 6});
  CHECK(output_of("index_select", {x, Tensor::from<int32_t>({2}, {2, 2})}, {{"dim", int64_t{1}}}) ==
        D{3, 3, 6, 6});
  CHECK(output_of("scatter_add", {x, Tensor::from<int32_t>({2, 3}, {1, 0, 1, 1, 1, 1})},
                  {{"shape", Shape{2, 3}}}) == D{0, 2, 0, 5, 5, 9});
  CHECK(output_of("index_add", {x, Tensor::from<int32_t>({2}, {2, 2})}, {{"shape", Shape{3, 3}}}) ==
        D{0, 0, 0, 0, 0, 0, 5, 7, 9});
  CHECK(output_of("embedding", {x, Tensor::from<int32_t>({2, 1}, {1, 0})}, {}) ==
        D{4, 5, 6, 1, 2, 3});
  CHECK(output_of("pixel_shuffle", {counting({1, 4, 1, 1})}, {{"factor", int64_t{2}}}) ==
        D{1, 2, 3, 4});
  // Padded by one, the first window holds one value; with ceil mode the last divisor counts only
  // the padding, not the places beyond it.
  CHECK(output_of("avg_pool2d", {counting({1, 1, 1, 3})},
                  {{"kernel", Shape{1, 2}}, {"padding", Shape{0, 1}}, {"stride", int64_t{2}}}) ==
        D{0.5, 2.5});
  CHECK(output_of("avg_pool2d", {counting({1, 1, 1, 4})},
                  {{"kernel", Shape{1, 3}}, {"stride", int64_t{3}}, {"ceil_mode", true}}) ==
        D{2, 4});
  CHECK(output_of("adaptive_avg_pool2d", {counting({1, 1, 1, 5})}, {{"size", Shape{1, 2}}}) ==
        D{2, 4});
  CHECK(output_of("upsample_nearest2d", {counting({1, 1, 1, 3})}, {{"size", Shape{1, 4}}}) ==
        D{1, 1, 2, 3});
  CHECK(output_of("upsample_bilinear2d", {counting({1, 1, 1, 2})}, {{"size", Shape{1, 4}}}) ==
        D{1, 1.25, 1.75, 2});
  CHECK(output_of("upsample_bilinear2d", {counting({1, 1, 1, 2})},
                  {{"size", Shape{1, 3}}, {"align_corners", true}}) == D{1, 1.5, 2});
  // Two groups of one channel; the transposed convolution spreads x over windows of w.
  CHECK(output_of("conv2d", {counting({1, 2, 1, 2}), Tensor::from<double>({2, 1, 1, 1}, {10, 100})},
                  {{"groups", int64_t{2}}}) == D{10, 20, 300, 400});
  CHECK(output_of("conv2d", {counting({1, 1, 1, 2}), Tensor::from<double>({1, 1, 1, 2}, {1, 10})},
                  {{"padding", Shape{0, 0, 0, 1}}}) == D{21, 2});
  CHECK(output_of("conv_transpose2d",
                  {counting({1, 1, 1, 2}), Tensor::from<double>({1, 1, 1, 2}, {1, 10}),
                   Tensor::from<double>({1}, {0.5})},
                  {}) == D{1.5, 12.5, 20.5});
}

TEST_CASE("gradients: movement, against central differences") {
  CHECK(shape_op_error("permute", {{2, 3, 4}}, {{"dims", Shape{1, 2, 0}}}) <= kGradientTolerance);
  CHECK(shape_op_error("expand", {{2, 1, 3}}, {{"shape", Shape{2, 2, 4, 3}}}) <=
        kGradientTolerance);
  CHECK(shape_op_error("slice", {{4, 7}},
                       {{"dim", int64_t{1}}, {"start", int64_t{1}}, {"step", int64_t{3}}}) <=
        kGradientTolerance);
  CHECK(shape_op_error("cat", {{2, 3}, {2, 1}, {2, 2}}, {{"dim", int64_t{1}}}) <=
        kGradientTolerance);
  CHECK(shape_op_error("pad", {{3, 4}}, {{"pads", Shape{1, -1, 0, 2}}, {"value", 0.5}}) <=
        kGradientTolerance);
  CHECK(shape_op_error("pixel_shuffle", {{1, 8, 2, 3}}, {{"factor", int64_t{2}}}) <=
        kGradientTolerance);
  CHECK(shape_op_error("gather", {{3, 4}}, {{"dim", int64_t{0}}}, {{5, 2}}) <= kGradientTolerance);
  CHECK(shape_op_error("index_select", {{2, 3, 2}}, {{"dim", int64_t{1}}}, {{7}}) <=
        kGradientTolerance);
  CHECK(shape_op_error("scatter_add", {{5, 2}}, {{"dim", int64_t{0}}, {"shape", Shape{3, 4}}},
                       {{5, 2}}) <= kGradientTolerance);
  CHECK(shape_op_error("index_add", {{2, 7, 2}}, {{"dim", int64_t{1}}, {"shape", Shape{2, 3, 2}}},
                       {{7}}) <= kGradientTolerance);
  CHECK(shape_op_error("embedding", {{4, 3}}, {}, {{2, 5}}, /*classes=*/4) <= kGradientTolerance);
}

TEST_CASE("gradients: normalisation over rows") {
  CHECK(shape_op_error("layer_norm", {{3, 5}, {5}, {5}}) <= kGradientTolerance);
  CHECK(shape_op_error("layer_norm", {{2, 3, 4}, {3, 4}}, {{"normalized_ndim", int64_t{2}}}) <=
        kGradientTolerance);
  CHECK(shape_op_error("rms_norm", {{3, 5}, {5}}, {{"eps", 1e-5}}) <= kGradientTolerance);
  CHECK(shape_op_error("group_norm", {{2, 4, 3}, {4}, {4}}, {{"groups", int64_t{2}}}) <=
        kGradientTolerance);
}

TEST_CASE("gradients: windows and convolutions") {
  CHECK(shape_op_error("max_pool2d", {{1, 2, 6, 7}},
                       {{"kernel", int64_t{2}},
                        {"dilation", Shape{2, 3}},
                        {"stride", int64_t{1}},
                        {"padding", int64_t{1}}}) <= kGradientTolerance);
  CHECK(shape_op_error("avg_pool2d", {{1, 2, 5, 6}},
                       {{"kernel", int64_t{3}},
                        {"stride", int64_t{2}},
                        {"padding", int64_t{1}},
                        {"ceil_mode", true}}) <= kGradientTolerance);
  for (const Shape& size : {Shape{1, 1}, Shape{2, 3}}) {
    CHECK(shape_op_error("adaptive_avg_pool2d", {{2, 2, 5, 4}}, {{"size", size}}) <=
          kGradientTolerance);
  }
  CHECK(shape_op_error("upsample_nearest2d", {{1, 2, 3, 2}}, {{"scale", 1.5}}) <=
        kGradientTolerance);
  for (const bool align : {false, true}) {
    CHECK(shape_op_error("upsample_bilinear2d", {{1, 2, 3, 2}},
                         {{"size", Shape{5, 4}}, {"align_corners", align}}) <= kGradientTolerance);
  }
  CHECK(shape_op_error("conv2d", {{2, 4, 5, 4}, {6, 2, 3, 2}, {6}},
                       {{"groups", int64_t{2}}, {"padding", Shape{1, 0, 2, 1}}}) <=
        kGradientTolerance);
  CHECK(shape_op_error("conv_transpose2d", {{2, 4, 3, 2}, {4, 3, 3, 2}, {6}},
                       {{"groups", int64_t{2}},
                        {"stride", int64_t{2}},
                        {"padding", int64_t{1}},
                        {"output_padding", Shape{1, 0}}}) <= kGradientTolerance);
}

TEST_CASE("embedding: the padding row gets no gradient, a bad index is an input error") {
  GraphBuilder b("padding");
  const Value weight = b.parameter("w", {3, 2});
  const Value index = b.input("index", ints({4}));
  const Value y = b.op("embedding", {weight, index}, {{"padding_idx", int64_t{1}}}, "");
  b.set_loss(b.op("mse_loss", {y, b.input("target", floats({4, 2}))}, {}, ""));
  const Graph step = differentiate(b.finish());
  testing::Values values = testing::make_values(step, /*classes=*/3);
  const testing::Values computed = testing::run_graph(step, values);
  const auto dw = computed.at(step.gradients.at("w")).as<double>();
  CHECK(dw[0] != 0);
  CHECK(dw[2] == 0);
  CHECK(dw[3] == 0);
  CHECK(dw[4] != 0);
  values.at(index).as<int32_t>()[3] = 3;
  CHECK_THROWS_WITH_AS(testing::run_graph(step, values),
                       doctest::Contains("index 3 at position 3, must be in [0, 3)"), InputError);
}

TEST_CASE("grouped convolution: the same bits as its groups convolved one by one") {
  // Group g has channels 2g, 2g + 1; index_select picks the image of one group.
  constexpr int64_t kGroups = 3;
  const Tensor x = testing::distinct_values({2, 6, 5, 4}, 1);
  const Tensor w = testing::distinct_values({9, 2, 3, 3}, 2);
  const D whole = output_of("conv2d", {x, w}, {{"groups", kGroups}});
  const int64_t plane = 3 * 2, out_group = 3 * plane;
  for (int64_t g = 0; g < kGroups; ++g) {
    const auto pick = [&](const Tensor& from, int32_t first, int32_t count, int64_t dim) {
      std::vector<int32_t> index;
      for (int32_t i = 0; i < count; ++i) index.push_back(first + i);
      Shape shape = from.shape();
      shape[static_cast<size_t>(dim)] = count;
      return Tensor::from<double>(
          shape,
          output_of("index_select", {from, Tensor::from<int32_t>({count}, index)}, {{"dim", dim}}));
    };
    const auto group = static_cast<int32_t>(g);
    const D part = output_of("conv2d", {pick(x, 2 * group, 2, 1), pick(w, 3 * group, 3, 0)}, {});
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t i = 0; i < out_group; ++i) {
        CHECK(whole[static_cast<size_t>((n * kGroups + g) * out_group + i)] ==
              part[static_cast<size_t>(n * out_group + i)]);
      }
    }
  }
}

}  // namespace lockstep

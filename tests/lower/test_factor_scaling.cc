// [scaling]: its keys, the factors that become scaled casts, and the axis of their blocks.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "src/core/random.h"
#include "src/core/text_hash.h"
#include "src/lower/product_recipe.h"
#include "src/policy/find_policy.h"
#include "src/policy/hardware_policy.h"
#include "tests/lower/lowered.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

// Two linear layers that read one tensor, so that casts can be shared.
Graph two_linears() {
  GraphBuilder b("two");
  const Value x = b.input("x", {{2, 5, 6}});
  const Value h = b.relu("relu", b.linear("fc0", x, 7));
  const Value y = b.op("add", {b.linear("fc1", h, 3), b.linear("fc2", h, 3, false)}, {}, "add");
  b.set_loss(b.op("mse_loss", {y, b.input("target", {{2, 5, 3}})}, {}, "loss"));
  return b.finish();
}

// The scaled cast that made operand `index` of an op, or null.
const ScaledCast* scaled(const Lowered& net, const std::string& layer, const std::string& op,
                         size_t index) {
  const int value = net.op(layer, op).inputs.at(index);
  const int place = net.program.values[static_cast<size_t>(value)].scaled_cast;
  return place < 0 ? nullptr : &net.program.scaled_casts[static_cast<size_t>(place)];
}
const Format* source_format(const Lowered& net, int scaled_value) {
  for (const Instruction& i : net.program.instructions) {
    if (i.kind == InstructionKind::kCast && i.outputs[0] == scaled_value) {
      return net.program.values[static_cast<size_t>(i.inputs[0])].format;
    }
  }
  return nullptr;
}

const std::string kCurrent =
    "extends = \"torch-autocast-bf16:2.12\"\n[scaling]\nkind = \"current\"\n"
    "operand = \"fp8_e4m3+saturate\"\ngrad_operand = \"fp8_e5m2+saturate\"\n";

}  // namespace

TEST_CASE("scaling presets have the defaults of the recipes they are named after") {
  const FactorScaling delayed = find_policy("fp8-delayed").scaling;
  CHECK(delayed.kind == ScalingKind::kDelayed);
  CHECK(delayed.activation.name() == "fp8_e4m3+saturate");
  CHECK(delayed.weight == delayed.activation);
  CHECK(delayed.gradient.name() == "fp8_e5m2+saturate");
  CHECK(delayed.delayed.history_length == 1024);
  CHECK(delayed.delayed.choice == AmaxChoice::kMax);
  CHECK(delayed.delayed.margin == 0);
  const FactorScaling mx = find_policy("mxfp8").scaling;
  CHECK(mx.gradient == mx.activation);
  CHECK(mx.activation.name() == "mxfp8_e4m3+rceil");
  const FactorScaling nv = find_policy("nvfp4").scaling;
  CHECK(nv.weight.name() == "nvfp4 squares");
  CHECK(nv.gradient.rounding == Rounding::kStochastic);
  CHECK(nv.activation.rounding == Rounding::kNearestEven);
  CHECK_FALSE(nv.activation.square);
  CHECK(find_policy("fp32").scaling.kind == ScalingKind::kNone);
}

TEST_CASE("scaling: a file's own keys, and a file that switches the preset's off") {
  const Policy mine = parse_policy(
      "extends = \"fp8-delayed:1\"\n[scaling]\namax_history = 16\n"
      "amax_compute = \"most_recent\"\nmargin = 2\nops = [\"linear\", \"conv2d\", \"bmm\"]\n",
      "mine.toml");
  CHECK(mine.scaling.delayed.history_length == 16);
  CHECK(mine.scaling.delayed.choice == AmaxChoice::kMostRecent);
  CHECK(mine.scaling.delayed.margin == 2);
  CHECK(join(mine.scaling.ops, " ") == "linear conv2d matmul");
  CHECK(mine.scaling.gradient.name() == "fp8_e5m2+saturate");
  const Lowered off = lower_text(small_net(), "extends = \"mxfp8\"\n[scaling]\nkind = \"none\"\n");
  CHECK(off.program.scaled_casts.empty());
}

TEST_CASE("scaling: problems of the table, each with its line") {
  const auto problem = [](const std::string& keys) {
    return problems_of(small_net(), "[scaling]\n" + keys);
  };
  CHECK(has(problem("kind = \"curent\"\n"), "line 2: [scaling] kind: kind 'curent': unknown"));
  CHECK(has(problem("kind = \"current\"\n"), "operand is missing: kind current needs it"));
  CHECK(has(problem("kind = \"current\"\noperand = \"mxfp8\"\ngrad_operand = \"fp8_e5m2\"\n"),
            "operand = 'mxfp8_e4m3': kind current takes formats without blocks"));
  CHECK(has(problem("kind = \"block\"\noperand = \"mxfp8\"\ngrad_operand = \"fp8_e5m2\"\n"),
            "grad_operand = 'fp8_e5m2': kind block takes block formats"));
  CHECK(has(problem("kind = \"unit\"\noperand = \"bf16\"\ngrad_operand = \"fp8_e5m2\"\n"),
            "operand = 'bf16': must be a format of at most 8 bits"));
  CHECK(has(problem("operand = \"fp8_e4m3\"\n"), "operand has no effect: kind is none"));
  const std::string current =
      "kind = \"current\"\noperand = \"fp8_e4m3\"\ngrad_operand = \"fp8_e5m2\"\n";
  CHECK(problem(current).empty());
  CHECK(has(problem(current + "margin = 1\n"), "margin has no effect: kind is current"));
  CHECK(has(problem(current + "amax_epsilon = -1.0\n"), "amax_epsilon must be at least 0"));
  CHECK(has(problem(current + "weight_blocks = \"square\"\n"), "weight_blocks has no effect"));
  CHECK(has(problem(current + "ops = []\n"), "ops is empty"));
  CHECK(has(problem(current + "ops = [\"linar\"]\n"), "ops has 'linar': no such op"));
  CHECK(has(problem(current + "ops = [\"lstm\"]\n"), "ops has 'lstm': its factors cannot be"));
  CHECK(has(problem(current + "ops = [\"matmul\"]\n"), "the model has no matmul"));
  CHECK(has(problem(current + "operands = \"x\"\n"), "operands is not a key of this table"));
  const std::string delayed =
      "kind = \"delayed\"\noperand = \"fp8_e4m3\"\ngrad_operand = \"fp8_e5m2\"\n";
  CHECK(has(problem(delayed + "amax_history = 0\n"), "amax_history = 0: must be in 1..65536"));
  CHECK(has(problem("kind = \"block\"\noperand = \"mxfp8\"\ngrad_operand = \"mxfp8\"\n"
                    "ops = [\"conv2d\"]\n"),
            "ops has 'conv2d': its factors cannot be scaled by kind block"));
}

TEST_CASE("scaling: factors of linear alone, weights from FP32, one cast for all readers") {
  const Lowered net = lower_text(two_linears(), kCurrent);
  const Instruction& fc1 = net.op("fc1", "linear");
  CHECK(net.reads(fc1) == "fp8_e4m3+saturate fp8_e4m3+saturate bf16");
  CHECK(net.writes(fc1) == "bf16");
  CHECK(source_format(net, fc1.inputs[0])->name == "bf16");
  CHECK(source_format(net, fc1.inputs[1])->name == "fp32");
  // x: fc1, fc2 and their weight gradients; w: forward and input gradient; dy: both gradients.
  const Instruction& dw = net.op("fc1", "linear_backward_weight");
  const Instruction& dx = net.op("fc1", "linear_backward_input");
  CHECK(net.op("fc2", "linear").inputs[0] == fc1.inputs[0]);
  CHECK(dw.inputs[0] == fc1.inputs[0]);
  CHECK(dx.inputs[0] == fc1.inputs[1]);
  CHECK(dx.inputs[1] == dw.inputs[1]);
  CHECK(net.reads(dw) == "fp8_e4m3+saturate fp8_e5m2+saturate");
  CHECK(net.writes(dw) == "bf16");
  CHECK(net.reads(net.op("fc1", "linear_backward_bias")) == "bf16");
  CHECK(scaled(net, "fc1", "linear", 0)->text() == "current scale");
  // x and h, three weights; one dy for fc1 and fc2, another for fc0.
  CHECK(net.program.scaled_casts.size() == 7);
  // The cast's statistics are recorded at the sites of all its readers.
  for (const Instruction& i : net.program.instructions) {
    if (i.kind != InstructionKind::kCast || i.outputs[0] != fc1.inputs[0]) continue;
    CHECK(i.roundings[0].sites.size() == 4);
  }
}

TEST_CASE("block scaling: blocks run along the sum of each product") {
  const Lowered net = lower_net(two_linears(), find_policy("mxfp8"));
  const auto axis = [&](const std::string& op, size_t i) {
    return scaled(net, "fc1", op, i)->shape.axis;
  };
  CHECK(axis("linear", 0) == 1);
  CHECK(axis("linear", 1) == 1);
  CHECK(axis("linear_backward_input", 0) == 0);
  CHECK(axis("linear_backward_input", 1) == 1);
  CHECK(axis("linear_backward_weight", 0) == 0);
  CHECK(axis("linear_backward_weight", 1) == 0);
  const BlockShape& x = scaled(net, "fc1", "linear", 0)->shape;
  CHECK(x.rows == 10);
  CHECK(x.cols == 7);
  // The same value cut in the other direction is another cast, of the unscaled value.
  const int forward = net.op("fc1", "linear").inputs[0];
  const int backward = net.op("fc1", "linear_backward_weight").inputs[0];
  CHECK(forward != backward);
  CHECK(source_format(net, backward)->name == "bf16");
  CHECK(net.op("fc2", "linear_backward_weight").inputs[0] == backward);
  // Squares are the same in both directions: one cast of the weight.
  const Lowered nv = lower_net(two_linears(), find_policy("nvfp4"));
  CHECK(nv.op("fc1", "linear").inputs[1] == nv.op("fc1", "linear_backward_input").inputs[0]);
  CHECK(nv.op("fc1", "linear").inputs[0] != nv.op("fc1", "linear_backward_weight").inputs[0]);
}

TEST_CASE("scaling by product: each product has its own formats, blocks and transform") {
  const auto text = [](const Lowered& net, const std::string& op, size_t i) {
    const ScaledCast* cast = scaled(net, "fc1", op, i);
    return cast == nullptr ? std::string("none") : cast->to.name() + ": " + cast->text();
  };
  const std::string dgrad = "linear_backward_input", wgrad = "linear_backward_weight";
  const Lowered rows = lower_net(two_linears(), find_policy("fp8-rowwise"));
  CHECK(text(rows, "linear", 0) == "fp8_e4m3_line: a scale per row");
  CHECK(text(rows, dgrad, 0) == "fp8_e4m3_line: a scale per column");
  CHECK(text(rows, wgrad, 1) == "fp8_e4m3_line: a scale per column");
  const Lowered high = lower_net(two_linears(), find_policy("fp8-rowwise-bf16-wgrad"));
  CHECK(text(high, "linear", 1) == "fp8_e4m3_line: a scale per row");
  CHECK(text(high, dgrad, 0) == "fp8_e4m3_line squares: one scale");
  CHECK(text(high, dgrad, 1) == "fp8_e4m3_line: a scale per row");
  CHECK(text(high, wgrad, 0) == "none");
  CHECK(high.reads(high.op("fc1", wgrad)) == "bf16 bf16");
  const Lowered blocks = lower_net(two_linears(), find_policy("fp8-blockwise"));
  CHECK(text(blocks, "linear", 1) == "fp8_e4m3_block squares: 128x128 blocks");
  CHECK(text(blocks, wgrad, 0) == "fp8_e4m3_block: blocks of 128 down columns");
  const Lowered backward = lower_net(two_linears(), find_policy("bf16-mxfp8-backward"));
  CHECK(text(backward, "linear", 0) == "none");
  CHECK(text(backward, dgrad, 1) == "mxfp8_e4m3+rceil: blocks of 32 along rows");
}

TEST_CASE("scaling by product: the Hadamard transform needs sums of multiples of 16") {
  const auto problem = [](const std::string& preset) {
    return testing::problems_in([&] { lower_net(two_linears(), find_policy(preset)); });
  };
  CHECK(has(problem("nvfp4-hadamard"),
            "[scaling] hadamard: fc0 linear_backward_weight sums 10 products, must be a multiple"));
  CHECK(problem("nvfp4").empty());
}

TEST_CASE("scaling: rules that exclude every layer are an error of their own") {
  GraphBuilder b("one");
  b.set_loss(b.op("mse_loss",
                  {b.linear("fc", b.input("x", {{4, 6}}), 3), b.input("target", {{4, 3}})}, {},
                  "loss"));
  CHECK(has(problems_of(b.finish(), "extends = \"deepseek-v3\"\n"),
            "rules exclude every linear of the model"));
}

TEST_CASE("scaling by product: what one product scales, another reads as autocast casts it") {
  const Lowered forward = lower_text(two_linears(), "extends = \"mxfp8-bf16-backward\"\n");
  CHECK(forward.reads(forward.op("fc1", "linear_backward_input")) == "bf16 bf16");
  CHECK(forward.op("fc1", "linear_backward_input").factor_formats[0]->name == "bf16");
  CHECK(forward.reads(forward.op("fc1", "linear_backward_weight")) == "bf16 bf16");
  CHECK(forward.op("fc1", "linear_backward_weight").factor_formats[0]->name == "bf16");
  // A weight is rounded from its stored form, whatever fprop reads.
  const Lowered backward = lower_text(two_linears(), "extends = \"bf16-mxfp8-backward\"\n");
  CHECK(backward.reads(backward.op("fc1", "linear")) == "bf16 bf16 bf16");
  const int weight = backward.op("fc1", "linear_backward_input").inputs[0];
  CHECK(source_format(backward, weight)->name == "fp32");
}

TEST_CASE("scaling by product: problems of the tables") {
  const auto problem = [](const std::string& keys) {
    return problems_of(small_net(), "extends = \"mxfp8\"\n" + keys);
  };
  CHECK(problem("[scaling.wgrad]\nkind = \"none\"\n").empty());
  CHECK(has(problem("[scaling.wgrad]\nkind = \"block\"\n"), "must be none or same"));
  CHECK(has(problem("[scaling.wgrad]\nkind = \"none\"\noperand = \"nvfp4\"\n"),
            "operand has no effect: kind is none"));
  CHECK(has(problem("[scaling.fprop]\ngrad_rounding = \"stochastic\"\n"),
            "grad_rounding has no effect: fprop reads no gradient"));
  CHECK(has(problem("[scaling.wgrad]\nweight_blocks = \"square\"\n"),
            "weight_blocks has no effect: wgrad reads no weight"));
  CHECK(
      has(problem("[scaling.dgrad]\noperand = \"fp8_e4m3\"\n"), "kind block takes block formats"));
  CHECK(has(problems_of(small_net(), kCurrent + "[scaling.wgrad]\nhadamard = \"fixed\"\n"),
            "hadamard has no effect: kind is current, not block"));
}

TEST_CASE("scaling by product: an accumulator sums blocks by themselves, or a whole tensor") {
  const Lowered blocks = lower_text(two_linears(),
                                    "extends = \"fp8-blockwise\"\n[scaling.dgrad]\n"
                                    "accumulator = \"hopper_fp8\"\n");
  const Instruction& dgrad = blocks.op("fc1", "linear_backward_input");
  CHECK(dgrad.gemm_accumulator->name == "hopper_fp8");
  CHECK(dgrad.sum_block == 3);  // fc1 has 3 outputs: one block
  CHECK(dgrad.factor_formats[0]->name == "fp8_e4m3");
  CHECK(blocks.op("fc1", "linear").gemm_accumulator->name == "fp32_fused");
  CHECK(blocks.op("fc1", "linear").sum_block == 0);
  const Lowered whole =
      lower_text(two_linears(), kCurrent +
                                    "[scaling.fprop]\naccumulator = \"hopper_fp8\"\n"
                                    "[scaling.wgrad]\naccumulator = \"hopper_fp8_promoted\"\n");
  CHECK(whole.op("fc1", "linear").gemm_accumulator->name == "hopper_fp8");
  CHECK(whole.op("fc1", "linear").sum_block == 0);
  CHECK(whole.op("fc1", "linear_backward_input").gemm_accumulator->name == "fp32_fused");
  CHECK(whole.op("fc1", "linear_backward_weight").gemm_accumulator->name == "hopper_fp8_promoted");
  // A rule wins.
  const Lowered by_rule =
      lower_text(two_linears(), kCurrent +
                                    "[scaling.fprop]\naccumulator = \"hopper_fp8\"\n"
                                    "[[rule]]\nlayer = \"fc1\"\naccumulator = \"fp32_pairwise\"\n");
  CHECK(by_rule.op("fc1", "linear").gemm_accumulator->name == "fp32_pairwise");
  CHECK(by_rule.op("fc2", "linear").gemm_accumulator->name == "hopper_fp8");
  // BF16 products of a layer that a rule excludes stay chains.
  const Lowered excluded =
      lower_text(two_linears(), kCurrent +
                                    "[scaling.fprop]\naccumulator = \"hopper_fp8\"\n"
                                    "[[rule]]\nlayer = \"fc1\"\ncompute = \"bf16\"\n");
  CHECK(excluded.op("fc1", "linear").gemm_accumulator->name == "fp32_fused");
  CHECK(has(problems_of(two_linears(),
                        "extends = \"nvfp4\"\n[scaling.fprop]\n"
                        "accumulator = \"hopper_fp8\"\n"),
            "accumulator hopper_fp8 does not take fp4_e2m1"));
}

TEST_CASE("scaling: FP32 scales and a least amax of blocks") {
  const FactorScaling own = find_policy("fp8-blockwise-torchao").scaling;
  CHECK(own.weight.fp32_scale);
  CHECK(own.gradient.amax_epsilon == 1e-12f);
  CHECK(own.is_uniform());
  const auto problem = [](const std::string& preset, const std::string& keys) {
    return problems_of(two_linears(), "extends = \"" + preset + "\"\n[scaling]\n" + keys);
  };
  CHECK(problem("fp8-rowwise", "amax_epsilon = 1e-12\n").empty());
  CHECK(has(problem("fp8-blockwise", "block_scale = \"fp32\"\n"), "must be at least 1e-30"));
  CHECK(has(problem("fp8-blockwise", "amax_epsilon = 1e-40\n"), "must be at least 1e-30"));
  CHECK(has(problem("fp8-blockwise", "block_scale = \"fp16\"\n"), "must be format or fp32"));
  CHECK(has(problem("nvfp4", "block_scale = \"fp32\"\namax_epsilon = 1e-12\n"),
            "with nvfp4: needs FP8 blocks"));
  CHECK(has(problem("fp8-blockwise",
                    "block_scale = \"fp32\"\namax_epsilon = 1e-12\n"
                    "[scaling.wgrad]\noperand = \"nvfp4\"\n"),
            "with nvfp4: needs FP8 blocks"));
  CHECK(has(problem("fp8-current", "block_scale = \"fp32\"\n"), "block_scale has no effect"));
  CHECK(has(problem("fp8-delayed", "amax_epsilon = 1e-12\n"), "amax_epsilon has no effect"));
}

TEST_CASE(
    "scaling: signs of a drawn Hadamard transform, both factors alike, layers by themselves") {
  GraphBuilder b("rows");
  const Value h = b.linear("fc1", b.input("x", {{16, 6}}), 3);
  b.set_loss(b.op("mse_loss", {b.linear("fc2", h, 3), b.input("target", {{16, 3}})}, {}, "loss"));
  const Graph graph = b.finish();
  const auto signs = [&](const std::string& keys, const std::string& layer, size_t operand) {
    const Lowered net = lower_text(graph, "extends = \"nvfp4-hadamard-drawn\"\n" + keys);
    return scaled(net, layer, "linear_backward_weight", operand)->signs;
  };
  const std::string seed = "[scaling]\nhadamard_seed = 7\n";
  CHECK(signs("", "fc1", 0) == signs("", "fc1", 1));
  CHECK(signs("", "fc1", 0) != signs("", "fc2", 0));
  CHECK(signs("", "fc1", 0) != signs(seed, "fc1", 0));
  CHECK(signs(seed, "fc1", 0) == signs(seed, "fc1", 0));
  CHECK(
      has(problems_of(graph, "extends = \"nvfp4-hadamard\"\n" + seed), "no product has hadamard"));
  CHECK(has(problems_of(graph, "extends = \"nvfp4\"\n[scaling.wgrad]\nhadamard = \"random\"\n"),
            "fixed"));
}

TEST_CASE("recipes of products: drawn signs are called drawn, even where they are the fixed ones") {
  uint64_t seed = 0;
  while (static_cast<uint16_t>(
             RandomStream(seed, RandomPurpose::kHadamardSigns).four(fnv1a("fc1"))[0]) !=
         kFixedHadamardSigns) {
    ++seed;
  }
  GraphBuilder b("one");
  b.set_loss(b.op("mse_loss",
                  {b.linear("fc1", b.input("x", {{16, 6}}), 3), b.input("target", {{16, 3}})}, {},
                  "loss"));
  const Graph graph = b.finish();
  const Lowered net =
      lower_text(graph, fmt::format("extends = \"nvfp4-hadamard-drawn\"\n[scaling]\n"
                                    "hadamard_seed = {}\n",
                                    seed));
  REQUIRE(scaled(net, "fc1", "linear_backward_weight", 0)->signs == kFixedHadamardSigns);
  CHECK(has(recipe_table(product_recipes(net.program, net.graph)), "drawn signs"));
}

TEST_CASE("recipes of products: a row for each, layers with the same recipe together") {
  const auto rows = [](const std::string& toml) {
    const Lowered net = lower_text(two_linears(), toml);
    return product_recipes(net.program, net.graph);
  };
  const std::vector<ProductRecipe> found = rows(
      "extends = \"fp8-blockwise\"\n[scaling.wgrad]\nkind = \"none\"\n"
      "[[rule]]\nlayer = \"fc2\"\ncompute = \"bf16\"\n");
  INFO(recipe_table(found));
  REQUIRE(found.size() == 5);  // wgrad of fc2 is that of the others
  CHECK(found[0].product == Product::kFprop);
  CHECK(join(found[0].layers, " ") == "fc0 fc1");
  CHECK(found[0].factors[0].operand == "x");
  CHECK(found[0].factors[0].granularity == "1x128");
  CHECK(found[0].factors[1].operand == "w");
  CHECK(found[0].factors[1].granularity == "128x128");
  CHECK(found[0].factors[1].scale == "2^n, rceil");
  CHECK(found[0].result == "bf16");
  CHECK(join(found[1].layers, " ") == "fc2");
  CHECK_FALSE(found[1].is_scaled());
  CHECK(found[4].product == Product::kWgrad);
  CHECK(found[4].factors[0].operand == "dy");
  CHECK(found[4].factors[0].format == "bf16");
  CHECK(found[4].layers.size() == 3);
  const std::string table = recipe_table(found);
  CHECK(has(table, "fc0 and 1 more"));
  CHECK(has(recipe_table(rows("extends = \"deepseek-v3\"\n")), "hopper_fp8 per 6, added in fp32"));
  CHECK(recipe_table(rows("extends = \"torch-autocast-bf16\"\n")).empty());
}

TEST_CASE("scaling and rules: compute excludes a layer, format one factor") {
  const Lowered by_compute =
      lower_text(two_linears(), kCurrent + "[[rule]]\nlayer = \"fc2\"\ncompute = \"bf16\"\n");
  CHECK(by_compute.reads(by_compute.op("fc2", "linear")) == "bf16 bf16");
  CHECK(by_compute.reads(by_compute.op("fc2", "linear_backward_weight")) == "bf16 bf16");
  CHECK(scaled(by_compute, "fc1", "linear", 0) != nullptr);
  const Lowered by_format = lower_text(
      two_linears(), kCurrent +
                         "[[rule]]\nlayer = \"fc2\"\nop = \"linear\"\nrole = \"weight\"\n"
                         "format = \"fp16\"\n");
  CHECK(by_format.reads(by_format.op("fc2", "linear")) == "fp8_e4m3+saturate fp16");
  const Lowered by_rounding =
      lower_text(two_linears(), kCurrent +
                                    "[[rule]]\nlayer = \"fc2\"\nrole = \"weight\"\n"
                                    "point = \"operand\"\nrounding = \"toward_zero\"\n");
  CHECK(scaled(by_rounding, "fc2", "linear", 1)->to.rounding == Rounding::kTowardZero);
  CHECK(scaled(by_rounding, "fc1", "linear", 1)->to.rounding == Rounding::kNearestEven);
}

TEST_CASE("scaling and rules: compute = policy takes back what earlier rules excluded") {
  const std::string none = "[[rule]]\nlayer = \"*\"\nop = \"linear\"\ncompute = \"bf16\"\n";
  const std::string back = "[[rule]]\nlayer = \"fc2\"\ncompute = \"policy\"\n";
  const Lowered net = lower_text(two_linears(), kCurrent + none + back);
  CHECK(scaled(net, "fc1", "linear", 0) == nullptr);
  CHECK(scaled(net, "fc2", "linear", 0) != nullptr);
  CHECK(scaled(net, "fc2", "linear_backward_weight", 0) != nullptr);
  // The last rule wins.
  CHECK_THROWS_WITH_AS(lower_text(two_linears(), kCurrent + back + none),
                       doctest::Contains("rules exclude every linear"), InputError);
  const Lowered fp32 = lower_text(two_linears(),
                                  "extends = \"torch-autocast-bf16\"\n[[rule]]\nlayer = \"*\"\n"
                                  "compute = \"fp32\"\n" +
                                      back);
  CHECK(fp32.reads(fp32.op("fc1", "linear")) == "fp32 fp32 fp32");
  CHECK(fp32.reads(fp32.op("fc2", "linear")) == "bf16 bf16");
}

TEST_CASE("scaling: names of histories are those of an evaluation graph, and all differ") {
  const Policy policy = find_policy("fp8-delayed");
  const Lowered net = lower_net(two_linears(), policy);
  std::set<std::string> names;
  for (const ScaledCast& cast : net.program.scaled_casts) CHECK(names.insert(cast.name).second);
  CHECK(names.contains("fc1.linear.1"));
  const Graph forward = two_linears();
  const SiteTable sites = make_sites(forward, 1);
  const Program evaluation = lower(forward, sites, policy);
  CHECK(evaluation.scaled_casts.size() == 5);
  for (const ScaledCast& cast : evaluation.scaled_casts) CHECK(names.contains(cast.name));
}

// The BF16 casts in front of them are not measured. Each still draws its own random bits, not those
// of the scaled cast it feeds.
TEST_CASE("scaling: stochastic casts in front of scaled ones have their own keys") {
  GraphBuilder b("norms");
  Value x = b.input("x", {{2, 6}});
  x = b.layer_norm("norm0", b.linear("fc0", x, 6));  // autocast leaves norms in FP32
  x = b.linear("fc1", b.layer_norm("norm1", x), 6);
  b.set_loss(b.op("mse_loss", {x, b.input("target", {{2, 6}})}, {}, "loss"));
  const Lowered net =
      lower_text(b.finish(), "extends = \"fp8-delayed\"\n[storage]\nrounding = \"stochastic\"\n");
  std::set<uint32_t> keys;
  size_t casts = 0, unmeasured = 0;
  for (const Instruction& i : net.program.instructions) {
    if (i.kind != InstructionKind::kCast) continue;
    ++casts;
    unmeasured += i.roundings[0].sites.empty();
    keys.insert(i.roundings[0].key());
  }
  CHECK(unmeasured >= 2);
  CHECK(keys.size() == casts);
}

TEST_CASE(
    "scaling on hardware: FP8 units serve scales of tensors and lines; blocks have no model") {
  const auto lower_on = [](const std::string& policy_name, const std::string& hardware) {
    Policy policy = find_policy(policy_name);
    apply_hardware(policy, *find_hardware(hardware));
    return lower_net(two_linears(), policy);
  };
  const Lowered hopper = lower_on("fp8-current", "hopper");
  const Instruction& dw = hopper.op("fc1", "linear_backward_weight");
  CHECK(dw.gemm_accumulator->name == "hopper_fp8");
  CHECK(dw.factor_formats[0]->name == "fp8_e4m3");
  CHECK(dw.factor_formats[1]->name == "fp8_e5m2");
  // Hardware sums the codes of a whole line; its scale multiplies the result.
  const Lowered rows = lower_on("fp8-rowwise", "hopper");
  const Instruction& y = rows.op("fc1", "linear");
  CHECK(y.gemm_accumulator->name == "hopper_fp8");
  CHECK(y.factor_formats[0]->name == "fp8_e4m3");
  CHECK(y.sum_block == 7);
  const auto problem = [&](const std::string& policy, const std::string& hardware) {
    return testing::problems_in([&] { lower_on(policy, hardware); });
  };
  CHECK(has(problem("mxfp8", "hopper"),
            "fc0 linear and 7 more sums: no accumulator of hopper models products of "
            "mxfp8_e4m3+rceil"));
  CHECK(has(problem("fp8-current", "ampere"), "ampere has no unit that sums"));
}

}  // namespace lockstep

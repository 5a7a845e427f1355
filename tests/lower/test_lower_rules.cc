// Lowering: the effect of a policy's [[rule]] tables, and the errors for rules without effect.
#include <doctest/doctest.h>

#include "src/lower/program_text.h"
#include "src/policy/find_policy.h"
#include "tests/lower/lowered.h"

namespace lockstep {
namespace {

TEST_CASE("rules: compute keeps a layer in FP32, forward and backward") {
  const Lowered net = lower_text(
      small_net(), "extends = 'torch-autocast-fp16'\n[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'");
  CHECK(net.reads(net.op("fc1", "linear")) == "fp16 fp32 fp32");  // FP16 x widens exactly
  CHECK(net.writes(net.op("fc1", "linear")) == "fp32");
  CHECK(net.reads(net.op("fc1", "linear_backward_weight")) == "fp16 fp32");
  CHECK(net.format(net.program.results.at("grad:fc1.weight")) == "fp32");
  CHECK(net.format(net.program.results.at("grad:conv1.weight")) == "fp16");
  // The gradient leaves fc1 in FP32 and is cast to FP16 where flatten, which is FP16, reads it.
  CHECK(net.writes(net.op("fc1", "linear_backward_input")) == "fp32");
}

TEST_CASE("rules: compute also overrides narrower accumulators and TF32 factors") {
  const Lowered pure =
      lower_text(small_net(), "extends = 'pure-fp16'\n[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'");
  CHECK(pure.op("fc1", "linear").gemm_accumulator->name == "fp32_fused");
  CHECK(pure.op("fc1", "linear_backward_weight").gemm_accumulator->name == "fp32_fused");
  CHECK(pure.op("fc1", "linear_backward_bias").reduce_accumulator->name == "fp32_fused");
  CHECK(pure.op("conv1", "conv2d").gemm_accumulator->name == "fp16");
  CHECK(pure.writes(pure.op("fc1", "linear")) == "fp32");
  const Lowered tf32 =
      lower_text(small_net(), "extends = 'tf32'\n[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'");
  CHECK(tf32.reads(tf32.op("fc1", "linear")) == "fp32 fp32 fp32");
  CHECK(tf32.reads(tf32.op("fc1", "linear_backward_weight")) == "fp32 fp32");
  CHECK(tf32.reads(tf32.op("conv1", "conv2d")) == "tf32 tf32 fp32");
}

TEST_CASE("rules: an accumulator reaches an op and its gradients, later rules win") {
  const Lowered net = lower_text(small_net(), R"(
[[rule]]
op = "linear"
accumulator = "fp16"
[[rule]]
op = "linear_backward_weight"
accumulator = "bf16"
)");
  CHECK(net.op("fc1", "linear").gemm_accumulator->name == "fp16");
  CHECK(net.op("fc1", "linear").accumulator_site >= 0);
  CHECK(net.op("fc1", "linear_backward_input").gemm_accumulator->name == "fp16");
  CHECK(net.op("fc1", "linear_backward_weight").gemm_accumulator->name == "bf16");
  CHECK(net.op("conv1", "conv2d").gemm_accumulator->name == "fp32_fused");
  CHECK(net.op("conv1", "conv2d").accumulator_site == -1);
}

TEST_CASE("[reduce] indexed: sums into indexed places in the format of the result") {
  const auto sums_of = [](const std::string& policy, const std::string& own_type) {
    GraphBuilder b("picks");
    const Value rows = b.linear("fc", b.input("rows", {{6, 2}}), 2);
    const Value index = b.input("index", {{6}, ElementType::kInt});
    Attributes attributes = {{"shape", Shape{3, 2}}};
    if (!own_type.empty()) attributes["own_type"] = own_type;
    const Value sums = b.op("index_add", {rows, index}, attributes, "picks");
    b.set_loss(b.op("mse_loss", {sums, b.input("target", {{3, 2}})}, {}, "loss"));
    return lower_text(b.finish(), policy).op("picks", "index_add").reduce_accumulator->name;
  };
  const std::string cuda = "[reduce]\nindexed = 'torch_cuda'\n[storage]\nweight = 'bf16'\n";
  const std::string cpu = "extends = 'as-captured-fp16-cpu'\n[storage]\nas_captured = false\n";
  CHECK(sums_of(cuda + "input = 'bf16'", "cuda") == "bf16");
  CHECK(sums_of(cuda + "input = 'bf16'", "both") == "bf16");
  CHECK(sums_of(cuda + "input = 'bf16'", "cpu") == "fp32_fused");
  CHECK(sums_of(cuda + "input = 'bf16'", "none") == "fp32_fused");
  CHECK(sums_of(cuda + "input = 'bf16'", "") == "fp32_fused");
  CHECK(sums_of(cuda, "cuda") == "fp32_fused");  // FP32 rows
  CHECK(sums_of(cpu, "cuda") == "fp32_fused");
  CHECK(sums_of(cpu, "cpu") == "fp16");
  for (const char* preset : {"half", "apex-o2", "apex-o3", "torch-autocast-fp16"}) {
    CAPTURE(preset);
    CHECK(sums_of("extends = '" + std::string(preset) + "'", "cuda") == "fp16");
  }
  CHECK(sums_of("extends = 'torch-autocast-bf16'", "cuda") == "bf16");
  CHECK(sums_of("extends = 'half'\n[reduce]\nindexed = 'declared'", "cuda") == "fp32_fused");
  CHECK(has(problems_of(small_net(), "[reduce]\nindexed = 'gpu'"),
            "'gpu': must be declared, torch_cuda or torch_cpu"));
}

TEST_CASE("[cuda] reaches every sum of products, and the text of the program") {
  const Lowered plain = lower_text(small_net(), "extends = 'torch-autocast-bf16'");
  CHECK_FALSE(has(to_text(plain.program, plain.graph, plain.sites), "cuBLAS"));
  const Lowered net = lower_text(small_net(), R"(
extends = "torch-autocast-bf16"
[cuda]
split_k = false
results = "factors"
reduced_precision_reduction = false
workspace_mib = 1
)");
  for (const auto& [layer, op] : {std::pair{"fc1", "linear"},
                                  {"fc1", "linear_backward_weight"},
                                  {"conv1", "conv2d"},
                                  {"conv1", "conv2d_backward_weight"}}) {
    CAPTURE(op);
    const Accumulator& sums = *net.op(layer, op).gemm_accumulator;
    CHECK(sums.name == plain.op(layer, op).gemm_accumulator->name);
    CHECK(sums.library == LibraryRules{.splits_k = false,
                                       .narrow_results = true,
                                       .adds_parts_narrow = false,
                                       .workspace_bytes = 1 << 20});
  }
  CHECK(has(to_text(net.program, net.graph, net.sites),
            "cuBLAS, @cuda: 1 MiB of workspace, no split-K, parts added in FP32, results in the "
            "factors' format"));
}

TEST_CASE("[cuda]: results stay in FP32 inside attention") {
  GraphBuilder b("attention");
  const Value x = b.input("x", {{1, 2, 4, 8}});
  const Value labels = b.input("labels", {{8}, ElementType::kInt});
  Value y = b.op("sdpa", {x, x, x}, {{"model", std::string("flash")}}, "attention");
  y = b.linear("head", b.reshape("flat", y, {8, 8}), 3);
  b.set_loss(b.op("cross_entropy", {y, labels}, {}, "loss"));
  const Lowered net = lower_text(b.finish(), R"(
extends = "torch-autocast-fp16"
[cuda]
results = "factors"
)");
  CHECK_FALSE(net.op("attention", "sdpa").gemm_accumulator->library.narrow_results);
  CHECK(net.op("head", "linear").gemm_accumulator->library.narrow_results);
}

TEST_CASE("rules: format and rounding change one kind of value") {
  const Lowered net = lower_text(small_net(), R"(
[[rule]]
layer = "fc1"
role = "weight"
format = "fp8_e4m3"
[[rule]]
role = "grad_weight"
point = "output"
format = "bf16"
rounding = "stochastic"
)");
  const Instruction& forward = net.op("fc1", "linear");
  CHECK(net.reads(forward) == "fp32 fp8_e4m3 fp8_e4m3");  // weight and bias are both weights
  CHECK(net.writes(forward) == "fp32");
  CHECK(net.reads(net.op("fc1", "linear_backward_input")) == "fp8_e4m3 fp32");
  const Instruction& gradient = net.op("fc1", "linear_backward_weight");
  CHECK(net.writes(gradient) == "bf16");
  CHECK(gradient.roundings[0].rounding == Rounding::kStochastic);
  CHECK(net.writes(net.op("fc1", "linear_backward_input")) == "fp32");
}

TEST_CASE("rules: one value is stored otherwise, where the rule names the point") {
  const std::string half = "[storage]\nweight = 'fp16'\nbuffer = 'fp16'\ninput = 'fp16'\n";
  const Lowered net = lower_text(small_net(), half + R"([[rule]]
layer = "fc1"
role = "weight"
point = "storage"
format = "fp32"
)");
  const auto stored = [&](const std::string& id) {
    return net.format(net.program.external.at(id));
  };
  CHECK(stored("p:fc1.weight") == "fp32");
  CHECK(stored("p:fc1.bias") == "fp32");
  CHECK(stored("p:conv1.weight") == "fp16");
  CHECK(stored("in0") == "fp16");
  // A rule for every point is one for what ops read and compute.
  const Lowered all = lower_text(small_net(), half + "[[rule]]\nlayer = 'fc1'\nformat = 'bf16'");
  CHECK(all.format(all.program.external.at("p:fc1.weight")) == "fp16");
  CHECK(has(problems_of(small_net(), half + "[[rule]]\nlayer = 'fc1'\npoint = 'storage'\n"
                                            "rounding = 'stochastic'"),
            "what is stored rounds as [storage] says"));
}

TEST_CASE("rules: one for a layer on another way through the model is no error") {
  const Graph graph = differentiate(small_net());
  SiteTable sites = make_sites(graph, 1);
  Site other = sites.sites.front();
  other.layer = "fc2";
  other.op = "linear";
  other.node = "path1:n7";
  other.point = Point::kOutput;
  sites.sites.push_back(other);
  const auto problems = [&](const std::string& layer) {
    const std::string rule = "[[rule]]\nlayer = \"" + layer + "\"\ncompute = \"fp32\"\n";
    return testing::problems_in([&] { lower(graph, sites, parse_policy(rule, "p.toml")); });
  };
  CHECK(problems("fc2") == "");
  CHECK(has(problems("fc3"), "matches nothing in small"));
}

TEST_CASE("rules: one that matches nothing is an error with its line and the names that exist") {
  const std::string problems = problems_of(small_net(), R"([[rule]]
layer = "fc2"
compute = "fp32"
[[rule]]
layer = "bn1"
accumulator = "fp16"
[[rule]]
layer = "conv1"
op = "linear"
compute = "fp32"
[[rule]]
role = "optimizer_state"
format = "fp16"
[[rule]]
layer = "fc1"
compute = "fp32"
)");
  CAPTURE(problems);
  CHECK(has(problems, "line 1: [[rule]] layer = \"fc2\": matches nothing in small"));
  CHECK(has(problems, "did you mean 'fc1'?"));
  CHECK(has(problems, "layers: bn1, conv1, fc1, flatten, loss, pool1, relu1"));
  CHECK(has(problems, "line 4: "));
  CHECK(has(problems, "no op there has a sum of products"));
  CHECK(has(problems, "line 7: "));
  CHECK(has(problems, "forward ops there: conv2d"));
  CHECK(has(problems, "line 11: "));
  CHECK(has(problems, "the optimizer's formats are set in [optimizer]"));
  CHECK_FALSE(has(problems, "line 14: "));
}

TEST_CASE("forward graphs: backward rules are no error in an evaluation") {
  const Graph forward = small_net();
  const Policy policy = parse_policy(
      "extends = 'torch-autocast-fp16'\n[[rule]]\nrole = 'grad_weight'\nformat = 'fp32'", "p.toml");
  const Program program = lower(forward, make_sites(forward, 0), policy);
  CHECK_FALSE(program.external.contains("seed"));
  CHECK(program.values[program.results.at("loss")].format->name == "fp32");
}

TEST_CASE("buffers: a new value the buffer cannot hold is an error, a wider buffer is not") {
  const std::string rule = "[[rule]]\nlayer = 'bn1'\nrole = 'buffer'\npoint = 'output'\n";
  CHECK(
      has(problems_of(small_net(), "[storage]\nbuffer = 'fp16'\n" + rule + "format = 'bf16'"),
          "buffer 'bn1.running_mean' is stored in fp16, which cannot hold its new value in bf16"));
  CHECK(problems_of(small_net(), rule + "format = 'bf16'") == "");
}

}  // namespace
}  // namespace lockstep

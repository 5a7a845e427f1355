// What a policy becomes in PyTorch's words, and what it cannot become.
#include "reports/pytorch/pytorch_recipe.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "reports/pytorch/pytorch_module.h"
#include "src/models/model.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

struct Said {
  PytorchRecipe recipe;
  std::vector<std::string> unsaid;

  bool has(const std::string& part) const {
    return std::ranges::any_of(
        unsaid, [&](const std::string& s) { return s.find(part) != std::string::npos; });
  }
};

Node node(const std::string& op, const std::string& layer) {
  Node made;
  made.op = op;
  made.layer = layer;
  return made;
}

// attn: linear, softmax; fc: linear; cross_entropy outside of any module.
Graph small_graph() {
  Graph graph;
  graph.name = "Net";
  graph.nodes = {node("linear", "attn"), node("softmax", "attn"), node("linear", "fc"),
                 node("gelu", "fc"), node("cross_entropy", "")};
  return graph;
}

constexpr PythonTarget kTorch, kTorchao{.library = ScalingLibrary::kTorchao},
    kEngine{.library = ScalingLibrary::kTransformerEngine};

Said said(const std::string& toml) {
  Said out;
  out.recipe = pytorch_recipe(parse_policy(toml, "p.toml"), small_graph(), kTorch, out.unsaid);
  return out;
}

constexpr const char* kFp16 = "extends = \"torch-autocast-fp16:2.12\"\n";
constexpr const char* kBf16 = "extends = \"torch-autocast-bf16:2.12\"\n";

TEST_CASE("every preset of torch's autocast is said in full") {
  size_t count = 0;
  for (const Policy& preset : presets()) {
    if (!preset.name.starts_with("torch-autocast-")) continue;
    CAPTURE(preset.label());
    std::vector<std::string> unsaid;
    const PytorchRecipe recipe = pytorch_recipe(preset, small_graph(), kTorch, unsaid);
    CHECK(recipe.format == preset.low->name);
    CHECK(unsaid.empty());
    CHECK(recipe.fp32_layers.empty());
    const bool is_fp16 = preset.low == &find_format("fp16");
    REQUIRE(recipe.scaler.has_value() == is_fp16);
    if (is_fp16) {
      CHECK(recipe.scaler->init_scale == 65536);
      CHECK(recipe.scaler->growth_factor == 2);
      CHECK(recipe.scaler->backoff_factor == 0.5);
      CHECK(recipe.scaler->growth_interval == 2000);
    }
    ++count;
  }
  CHECK(count >= 6);
}

TEST_CASE("every other preset says what torch and its libraries do not do") {
  for (const Policy& preset : presets()) {
    const bool is_fp32 = preset.name == kReferenceLane || preset.name == "apex-o0";
    const bool is_said = preset.gemm_operand != nullptr;
    if (is_fp32 || is_said || preset.name.starts_with("torch-autocast-")) continue;
    CAPTURE(preset.label());
    std::vector<std::string> unsaid;
    pytorch_recipe(preset, small_graph(), kTorch, unsaid);
    CHECK_FALSE(unsaid.empty());
  }
  std::vector<std::string> unsaid;
  const PytorchRecipe fp32 =
      pytorch_recipe(find_policy(kReferenceLane), small_graph(), kTorch, unsaid);
  CHECK(fp32.format.empty());
  CHECK_FALSE(fp32.scaler);
  CHECK(unsaid.empty());
}

TEST_CASE("a layer stays in fp32 if a rule says so of all its operations") {
  const Said whole = said(std::string(kFp16) + "[[rule]]\nlayer = \"fc\"\ncompute = \"fp32\"\n");
  CHECK(whole.recipe.fp32_layers == std::vector<std::string>{"fc"});
  CHECK(whole.unsaid.empty());
  // gelu follows its operands, softmax is on the FP32 list anyway.
  const std::string linear = "op = \"linear\"\ncompute = \"fp32\"\n";
  const Said part = said(std::string(kFp16) + "[[rule]]\nlayer = \"fc\"\n" + linear);
  CHECK(part.recipe.fp32_layers.empty());
  CHECK(part.has("fc: linear in FP32, but not gelu"));
  const Said harmless = said(std::string(kFp16) + "[[rule]]\nlayer = \"attn\"\n" + linear);
  CHECK(harmless.recipe.fp32_layers == std::vector<std::string>{"attn"});
  CHECK(harmless.unsaid.empty());
}

TEST_CASE("later rules win, and globs match several layers in the graph's order") {
  const Said found =
      said(std::string(kFp16) + "[[rule]]\nlayer = \"*\"\ncompute = \"fp32\"\n[[rule]]\nlayer = " +
           "\"attn\"\nop = \"linear\"\ncompute = \"fp16\"\n");
  CHECK(found.recipe.fp32_layers == std::vector<std::string>{"fc"});
  CHECK(found.unsaid.empty());  // the rest is what the lists say
}

TEST_CASE("the user hears of an operation outside all modules") {
  const std::string rule = "[[rule]]\nlayer = \"cross_entropy\"\ncompute = \"fp32\"\n";
  CHECK(said(kFp16 + rule).unsaid.empty());  // on torch's FP32 list
  const Said moved =
      said(std::string(kFp16) + "[autocast]\nlow_precision = [\"cross_entropy\"]\n" + rule);
  CHECK(moved.recipe.fp32_layers.empty());
  CHECK(moved.has("cross_entropy: cross_entropy in FP32, but it is in no module"));
  CHECK(moved.has("cross_entropy is on the list low_precision of the policy and on fp32"));
}

TEST_CASE("scalers become GradScaler's arguments") {
  const Said fixed =
      said(std::string(kFp16) + "[loss_scale]\nkind = \"static\"\ninit_scale = 128.0\n");
  REQUIRE(fixed.recipe.scaler);
  CHECK(fixed.recipe.scaler->is_static);
  CHECK(fixed.recipe.scaler->init_scale == 128);
  CHECK(fixed.recipe.scaler->growth_interval == INT32_MAX);
  CHECK(fixed.recipe.scaler->backoff_factor < 1);  // GradScaler asserts it
  CHECK(static_cast<float>(128.0 * fixed.recipe.scaler->backoff_factor) == 128.0F);
  CHECK(fixed.unsaid.empty());
  const Said apex = said(std::string(kFp16) + "[loss_scale]\nkind = \"apex\"\n");
  REQUIRE(apex.recipe.scaler);
  CHECK(apex.recipe.scaler->backoff_factor == 0.5);
  CHECK(apex.has("follows the rule of apex"));
  CHECK(apex.has("max_scale = 1.67772e+07"));
  CHECK(apex.has("one GradScaler per loss"));
  CHECK(said(std::string(kFp16) + "[loss_scale]\nkind = \"static-unchecked\"\ninit_scale = 8.0\n")
            .has("Gradients are not checked"));
}

TEST_CASE("what torch cannot say is one sentence each") {
  const struct {
    const char *toml, *sentence;
  } kCases[] = {
      {"[gemm]\naccumulator = \"fp16\"\n", "summed in the accumulator fp16"},
      {"[reduce]\naccumulator = \"fp16\"\n", "formed in the accumulator fp16"},
      {"[storage]\nrounding = \"stochastic\"\n", "rounded to stochastic"},
      {"[storage]\nweight = \"bf16\"\n", "Stored are weights in bf16: convert"},
      {"[optimizer]\nstate = \"bf16\"\n", "state is kept in bf16"},
      {"[optimizer]\nupdate_rounding = \"stochastic\"\n", "round to nearest even."},
      {"[optimizer]\nupdate_rounding = \"kahan\"\n", "add them plainly."},
      {"[model]\ninput = \"fp16\"\n", "inputs are cast to fp16"},
      {"[[rule]]\nlayer = \"fc\"\nloss_scale = 4.0\n", "fc: gradients have a further scale of 4"},
      {"[[rule]]\nlayer = \"fc\"\nautocast = \"off\"\n", "fc: gelu, linear outside of autocast"},
      {"[[rule]]\nlayer = \"fc\"\ncompute = \"bf16\"\n", "fc: gelu, linear computed in bf16"},
      {"[[rule]]\nlayer = \"fc\"\nrole = \"weight\"\nformat = \"bf16\"\n",
       "fc, weight: values are rounded to bf16"},
  };
  for (const auto& c : kCases) {
    const Said found = said(std::string(kFp16) + c.toml);
    CAPTURE(c.toml);
    CAPTURE(fmt::format("{}", fmt::join(found.unsaid, "\n")));
    CHECK(found.unsaid.size() == 1);
    CHECK(found.has(c.sentence));
  }
}

TEST_CASE("a layer in another 16-bit format runs under an autocast of its own") {
  const std::string fc_in_bf16 = "[[rule]]\nlayer = \"fc\"\nop = \"linear\"\ncompute = \"bf16\"\n";
  const std::string attn = "[[rule]]\nlayer = \"attn\"\nop = \"linear\"\ncompute = \"bf16\"\n";
  // gelu is not asked to be in bf16, softmax is on torch's FP32 list.
  CHECK(said(kFp16 + fc_in_bf16).has("fc: linear computed in bf16 whatever the lists say"));
  CHECK(said(kFp16 + attn + "[[rule]]\nlayer = \"attn\"\nop = \"softmax\"\ncompute = \"bf16\"\n")
            .has("attn: linear, softmax computed in bf16"));
  Graph graph = small_graph();
  graph.nodes = {node("reshape", "fc"), node("linear", "fc"), node("gelu", "act")};
  const std::pair<std::string, std::string> fc{"fc", "bf16"};
  for (const std::string base : {kFp16, "extends = \"tf32:1\"\n", ""}) {
    CAPTURE(base);
    std::vector<std::string> unsaid;
    const Policy policy =
        parse_policy(base + "[[rule]]\nlayer = \"fc\"\ncompute = \"bf16\"\n", "p");
    const PytorchRecipe recipe = pytorch_recipe(policy, graph, kTorch, unsaid);
    CHECK(recipe.low_layers == std::vector{fc});
    CHECK(recipe.fp32_layers.empty());
    REQUIRE(unsaid.size() == (base == kFp16 ? 0 : 1));
    if (!unsaid.empty()) CHECK(unsaid.front().starts_with("fc: the result is widened to FP32"));
  }
}

TEST_CASE("TF32 is two switches, with layers that keep FP32") {
  const Said whole = said("extends = \"tf32:1\"\n[[rule]]\nlayer = \"fc\"\ncompute = \"fp32\"\n");
  REQUIRE(whole.recipe.tf32);
  CHECK(whole.recipe.tf32->matmul);
  CHECK(whole.recipe.tf32->cudnn);
  CHECK(whole.recipe.fp32_layers == std::vector<std::string>{"fc"});
  CHECK(whole.unsaid.empty());
  const Said conv = said("extends = \"tf32-conv:1\"\n");
  REQUIRE(conv.recipe.tf32);
  CHECK_FALSE(conv.recipe.tf32->matmul);
  CHECK(conv.recipe.tf32->cudnn);
  const Said plain = said("[[rule]]\nlayer = \"fc\"\ncompute = \"fp32\"\n");
  CHECK_FALSE(plain.recipe.tf32);
  CHECK(plain.recipe.fp32_layers.empty());
  const Said bf16 = said("[gemm]\noperand = \"bf16\"\n");
  CHECK_FALSE(bf16.recipe.tf32);
  CHECK(bf16.has("Factors of products are rounded to bf16"));
  Graph graph = small_graph();
  graph.nodes.push_back(node("matmul", "attn"));
  std::vector<std::string> unsaid;
  const Policy one =
      parse_policy("extends = \"tf32:1\"\n[gemm]\noperand_ops = [\"linear\"]\n", "p");
  CHECK_FALSE(pytorch_recipe(one, graph, kTorch, unsaid).tf32);
  CHECK(unsaid.size() == 1);
}

TEST_CASE("optimizers outside of torch are named where they do what the policy asks") {
  CHECK(said("extends = \"pure-bf16-stochastic:1\"\n").has("torchao.optim._AdamW"));
  CHECK(said("extends = \"pure-bf16-kahan:1\"\n").has("optimi.AdamW(..., kahan_sum=True)"));
  CHECK_FALSE(said("extends = \"pure-fp16-kahan:1\"\n").has("optimi.AdamW"));
}

TEST_CASE("torch can leave out the cache of weights") {
  const Said found = said(std::string(kBf16) + "[autocast]\nweight_cache = false\n");
  CHECK_FALSE(found.recipe.weight_cache);
  CHECK(found.unsaid.empty());
}

// Linear layers with weights of their own, one with its head's, one of an nn.MultiheadAttention.
Graph linear_graph() {
  const auto linear = [](const std::string& layer, const std::string& weight) {
    Node made = node("linear", layer);
    made.inputs = {"in0", "p:" + weight};
    return made;
  };
  Graph graph = small_graph();
  graph.nodes = {linear("fc1", "fc1.weight"), linear("attn", "attn.in_proj_weight"),
                 linear("fc2", "fc2.weight"), linear("head", "embed.weight")};
  return graph;
}

Said said_of_linears(const std::string& toml, const PythonTarget& target) {
  Said out;
  out.recipe = pytorch_recipe(parse_policy(toml, "p.toml"), linear_graph(), target, out.unsaid);
  return out;
}

TEST_CASE("sums and reductions that a target cannot say are listed, and only those") {
  const PythonTarget engine{.library = ScalingLibrary::kTransformerEngine};
  CHECK(said_of_linears("extends = \"deepseek-v3\"\n", engine)
            .has("Scaled factors of fprop are summed in the accumulator hopper_fp8"));
  const PythonTarget torchao{.library = ScalingLibrary::kTorchao};
  CHECK_FALSE(said_of_linears("extends = \"fp8-rowwise\"\n[scaling.fprop]\naccumulator = "
                              "\"hopper_fp8\"\n",
                              torchao)
                  .has("accumulator hopper_fp8"));
  const PythonTarget sharded{.is_sharded = true};
  for (const std::string preset : {"fsdp2-bf16", "fsdp2-bf16-param-reduce:2.14", "fp16-rl"}) {
    CAPTURE(preset);
    const std::string toml = "extends = \"" + preset + "\"\n";
    CHECK_FALSE(said_of_linears(toml, sharded).has("[all_reduce]"));
    CHECK_FALSE(said_of_linears(toml, sharded).has("micro-batches add up"));
    CHECK(said_of_linears(toml, {}).has("micro-batches add up"));
  }
}

TEST_CASE("what torch's kernels on a GPU do is not called another way of rounding") {
  const PythonTarget sharded{.is_sharded = true};
  const auto says = [&](const std::string& toml) {
    return said_of_linears(toml, sharded).has("as its kernels on the device do");
  };
  CHECK_FALSE(says("extends = \"fsdp2-bf16\"\n"));
  CHECK(says("extends = \"fsdp2-bf16\"\n[softmax]\nlog = \"torch_cpu\"\n"));
  CHECK(said_of_linears("extends = \"fsdp2-bf16\"\n[reduce]\nindexed = \"torch_cpu\"\n", sharded)
            .has("are those of torch on the CPU"));
}

// "class="MXFP8BlockScaling", fp8_format="E4M3"" of the fact with this name; "" of none.
std::string fact_text(const Said& found, const std::string& name) {
  if (!found.recipe.scaled) return "";
  for (const PythonFact& fact : found.recipe.scaled->call.facts) {
    if (fact.name != name) continue;
    if (!fact.value.empty()) return fact.value;
    std::vector<std::string> rows;
    for (const auto& [key, value] : fact.table) rows.push_back(key + "=" + value);
    return fmt::format("{}", fmt::join(rows, ", "));
  }
  return "";
}

TEST_CASE("products with own sums, scales of their own and drawn signs") {
  const auto torchao = [](const std::string& toml, const std::string& fact) {
    return fact_text(said_of_linears(toml, kTorchao), fact);
  };
  const auto engine = [](const std::string& toml) {
    return fact_text(said_of_linears(toml, kEngine), "RECIPE");
  };
  const std::string fp32_scales = "[scaling]\nblock_scale = \"fp32\"\namax_epsilon = 1e-12\n";
  const std::string fast = "[scaling.fprop]\naccumulator = \"hopper_fp8\"\n";
  CHECK(torchao("extends = \"fp8-rowwise\"\n" + fp32_scales, "POWER_OF_TWO_SCALES") == "False");
  CHECK(torchao("extends = \"fp8-rowwise\"\n", "POWER_OF_TWO_SCALES") == "True");
  CHECK(torchao("extends = \"fp8-rowwise\"\n" + fast, "FAST_SUMS") ==
        "output=True, grad_input=False, grad_weight=False");
  CHECK(torchao("extends = \"mxfp8\"\n" + fp32_scales, "MX_SCALES").empty());
  CHECK(torchao("extends = \"fp8-blockwise-torchao\"\n", "CASTS").empty());
  CHECK(torchao("extends = \"nvfp4-hadamard-drawn\"\n", "HADAMARD_SIGNS").empty());
  CHECK(engine("extends = \"deepseek-v3\"\n") ==
        "class=\"Float8BlockScaling\", fp8_format=\"E4M3\"");
  CHECK(engine("extends = \"fp8-blockwise-torchao\"\n").empty());
  CHECK(engine("extends = \"nvfp4-hadamard-drawn\"\n").empty());
}

TEST_CASE("scaled operands of linear layers become calls of torchao and Transformer Engine") {
  const std::string e4m3 = "[scaling]\ngrad_operand = \"fp8_e4m3+saturate\"\n";
  const struct {
    std::string toml, recipe, region, fact, value;  // of Transformer Engine; of torchao
  } kCases[] = {
      {"extends = \"fp8-delayed\"\n",
       "class=\"DelayedScaling\", fp8_format=\"HYBRID\", margin=0, amax_history_len=1024, "
       "amax_compute_algo=\"max\"",
       "", "", ""},
      {"extends = \"fp8-current\"\n",
       "class=\"Float8CurrentScaling\", fp8_format=\"HYBRID\", use_split_accumulator=True",
       "float8", "RECIPE_NAME", "\"tensorwise\""},
      {"extends = \"fp8-tensorwise\"\n", "class=\"CustomRecipe\"", "float8", "RECIPE_NAME",
       "\"tensorwise\""},
      {"extends = \"fp8-current\"\n" + e4m3,
       "class=\"Float8CurrentScaling\", fp8_format=\"E4M3\", use_split_accumulator=True", "float8",
       "RECIPE_NAME", "None"},
      {"extends = \"fp8-current\"\n[scaling]\npower_of_two = true\n", "class=\"CustomRecipe\"",
       "float8", "POWER_OF_TWO_SCALES", "True"},
      {"extends = \"fp8-rowwise\"\n", "", "float8", "RECIPE_NAME", "\"rowwise\""},
      {"extends = \"fp8-rowwise-bf16-wgrad\"\n", "", "float8", "RECIPE_NAME",
       "\"rowwise_with_gw_hp\""},
      {"extends = \"fp8-blockwise\"\n", "class=\"Float8BlockScaling\", fp8_format=\"E4M3\"", "", "",
       ""},
      {"extends = \"mxfp8\"\n", "class=\"MXFP8BlockScaling\", fp8_format=\"E4M3\"", "mxfp8",
       "WGRAD_WITH_HP", "False"},
      {"extends = \"mxfp8-bf16-wgrad\"\n", "class=\"CustomRecipe\"", "mxfp8", "WGRAD_WITH_HP",
       "True"},
      {"extends = \"mxfp8\"\n[scaling]\noperand = \"mxfp8_e4m3+floor\"\ngrad_operand = "
       "\"mxfp8_e4m3+floor\"\n",
       "", "mxfp8", "MX_SCALES", "\"FLOOR\""},
      {"extends = \"mxfp8-bf16-backward\"\n", "class=\"CustomRecipe\"", "", "", ""},
      {"extends = \"nvfp4\"\n",
       "class=\"NVFP4BlockScaling\", disable_rht=True, disable_stochastic_rounding=False, "
       "disable_2d_quantization=False",
       "", "", ""},
      {"extends = \"nvfp4\"\n[scaling]\ngrad_rounding = \"nearest_even\"\n",
       "class=\"NVFP4BlockScaling\", disable_rht=True, disable_stochastic_rounding=True, "
       "disable_2d_quantization=False",
       "", "", ""},
      {"extends = \"nvfp4-hadamard\"\n",
       "class=\"NVFP4BlockScaling\", disable_rht=False, disable_stochastic_rounding=False, "
       "disable_2d_quantization=False",
       "nvfp4", "HADAMARD_SIGNS", "(1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)"},
      {"extends = \"mxfp8-nvfp4-backward\"\n", "class=\"CustomRecipe\"", "", "", ""},
  };
  for (const auto& c : kCases) {
    CAPTURE(c.toml);
    const std::string toml = c.toml + "[[rule]]\nlayer = \"fc1\"\ncompute = \"bf16\"\n" +
                             "[[rule]]\nlayer = \"head\"\ncompute = \"fp32\"\n";
    const Said engine = said_of_linears(toml, kEngine), torchao = said_of_linears(toml, kTorchao);
    CHECK(fact_text(engine, "RECIPE") == c.recipe);
    CHECK(torchao.recipe.scaled.has_value() == !c.region.empty());
    CHECK(fact_text(torchao, c.fact) == c.value);
    if (torchao.recipe.scaled) CHECK(torchao.recipe.scaled->call.region == c.region);
    for (const Said* found : {&engine, &torchao}) {
      CHECK(found->unsaid.size() == 1);
      CHECK(found->recipe.fp32_layers == std::vector<std::string>{"head"});
      CHECK(found->recipe.low_layers.empty());
      if (!found->recipe.scaled) continue;
      CHECK(found->recipe.scaled->layers == std::vector<std::string>{"fc2"});
      CHECK(found->recipe.scaled->kept == std::vector<std::string>{"fc1", "head"});
      CHECK(found->has("attn: factors of linear are rounded to"));
    }
    const Said plain = said_of_linears(toml, kTorch);
    CHECK_FALSE(plain.recipe.scaled);
    CHECK(plain.has("autocast has no such formats; --emit "));
    CHECK(plain.has("--emit torchao") == !c.region.empty());
    CHECK(plain.has("--emit transformer-engine") == !c.recipe.empty());
  }
  CHECK(said_of_linears("extends = \"fp8-current:1\"\n", kTorchao).recipe.scaled->layers ==
        std::vector<std::string>{"fc1", "fc2", "head"});
}

TEST_CASE("scaled operands that neither library has are a sentence") {
  for (const std::string more :
       {"fp8-delayed\"\n[scaling]\nops = [\"linear\", \"conv2d\"]\n",
        "fp8-current\"\n[scaling]\nkind = \"unit\"\noperand = "
        "\"fp8_e4m3+saturate\"\ngrad_operand = \"fp8_e5m2+saturate\"\n",
        "fp8-current\"\n[scaling]\namax_epsilon = 0.5\nrounding = \"stochastic\"\n",
        "fp8-current\"\n[scaling]\nrounding = \"stochastic\"\n",
        "fp8-rowwise\"\n[scaling.wgrad]\nhadamard = \"fixed\"\n",
        "mxfp8\"\n[scaling]\nweight_blocks = \"square\"\n"}) {
    CAPTURE(more);
    for (const PythonTarget& target : {kTorchao, kEngine}) {
      const Said found = said_of_linears("extends = \"" + more, target);
      CHECK_FALSE(found.recipe.scaled);
      CHECK(found.unsaid.size() == 1);
      CHECK(found.has(" is known to be the same."));
    }
  }
  CHECK_FALSE(said(kBf16).recipe.scaled);
}

TEST_CASE("text of unknown origin is a literal in one printable line") {
  CHECK(python_string("h.0.attn") == R"("h.0.attn")");
  CHECK(python_string("a\"b'c\\") == R"("a\"b'c\\")");
  CHECK(python_string("a\nb\x1b[1m") == R"("a\u000ab\u001b[1m")");
  CHECK(python_string("\u202e\xff") == R"("\u202e\xff")");
  PytorchRecipe recipe;
  recipe.model = "\"\"\"\nimport os\\";
  recipe.fp32_layers = {"\"]\nimport os\n#"};
  const std::string module = pytorch_module(recipe, {"\"\"\"\nimport os"});
  CHECK(module.find("\nimport os") == std::string::npos);
  CHECK(module.find(R"(for \"\"\"\\u000aimport os\\,)") != std::string::npos);
}

}  // namespace
}  // namespace lockstep

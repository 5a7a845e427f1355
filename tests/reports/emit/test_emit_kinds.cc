// Every kind writes every preset; flags of Megatron, and what its flags cannot say.
#include "reports/emit/emit_kinds.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/core/error.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

Node node(const std::string& op, const std::string& layer) {
  Node made;
  made.op = op;
  made.layer = layer;
  if (op == "linear") made.inputs = {"in0", "p:" + layer + ".weight"};
  return made;
}

// Four blocks of two linear layers, a head.
Graph blocks_graph() {
  Graph graph;
  graph.name = "Net";
  for (int i = 0; i < 4; ++i) {
    graph.nodes.push_back(node("linear", fmt::format("net.layers.{}.qkv", i)));
    graph.nodes.push_back(node("softmax", fmt::format("net.layers.{}", i)));
    graph.nodes.push_back(node("linear", fmt::format("net.layers.{}.mlp.fc1", i)));
  }
  graph.nodes.push_back(node("linear", "head"));
  return graph;
}

struct Written {
  std::string text, flags;
  std::vector<std::string> unsaid;

  bool has(const std::string& part) const {
    return std::ranges::any_of(
        unsaid, [&](const std::string& s) { return s.find(part) != std::string::npos; });
  }
};

Written written(const std::string& kind, const Policy& policy) {
  Written out;
  const EmitFacts facts{
      .policy = policy, .graph = blocks_graph(), .model = "net", .evidence = "seen"};
  out.text = find_emit_kind(kind).write(facts, "mine", out.unsaid);
  return out;
}

// The flags in one line.
Written megatron(const std::string& toml) {
  Written out = written("megatron", parse_policy(toml, "p.toml"));
  const size_t begin = out.text.find("LOCKSTEP_FLAGS=(\n");
  REQUIRE(begin != std::string::npos);
  std::string line;
  for (const char c : out.text.substr(begin)) {
    if (c != '\n') line += c;
  }
  out.flags = line.substr(std::string("LOCKSTEP_FLAGS=(").size());
  out.flags.pop_back();
  return out;
}

std::string in_bf16(const std::string& layer) {
  return fmt::format("[[rule]]\nlayer = \"{}\"\ncompute = \"bf16\"\n", layer);
}

TEST_CASE("every kind writes every preset, and its first lines carry what it cannot do") {
  std::set<std::string_view> names;
  size_t with_unsaid = 0;
  for (const EmitKind& kind : emit_kinds()) {
    CHECK(names.insert(kind.name).second);
    CHECK(kind.extension.starts_with('.'));
    for (const Policy& preset : presets()) {
      CAPTURE(kind.name);
      CAPTURE(preset.label());
      const Written out = written(std::string(kind.name), preset);
      CHECK(out.text.find("for net, written by Lockstep.") != std::string::npos);
      CHECK((out.text.find("does not do:") != std::string::npos) == !out.unsaid.empty());
      CHECK(out.text.find(out.unsaid.empty() ? "Evidence: seen." : "as a whole: seen.") !=
            std::string::npos);
      with_unsaid += out.unsaid.empty() ? 0 : 1;
    }
  }
  CHECK(with_unsaid > 0);
  CHECK_THROWS_WITH_AS(find_emit_kind("torcho"), doctest::Contains("did you mean 'torchao'"),
                       InputError);
}

TEST_CASE("names of unknown origin stay in comments and literals") {
  EmitFacts facts{.policy = parse_policy("extends = \"mxfp8\"\n", "p.toml"),
                  .graph = {},
                  .model = "a\nevil: 1",
                  .evidence = "b\nevil: 2"};
  facts.graph.nodes = {node("linear", "h.0.fc\nevil: 3"), node("linear", "h.1.\"fc\"$(evil)")};
  facts.policy = parse_policy("extends = \"mxfp8\"\n" + in_bf16("h.0*"), "p.toml");
  for (const EmitKind& kind : emit_kinds()) {
    CAPTURE(kind.name);
    std::vector<std::string> unsaid;
    const std::string text = kind.write(facts, "x;evil\nevil: 4", unsaid);
    CHECK(text.find("evil") != std::string::npos);
    CHECK(text.find("\nevil") == std::string::npos);
    if (kind.extension != std::string_view(".sh")) continue;
    CHECK(text.substr(text.find("LOCKSTEP_FLAGS=(\n")).find("evil") == std::string::npos);
  }
}

TEST_CASE("Megatron has a flag for each recipe of Transformer Engine") {
  const std::string plain = "--bf16  --attention-softmax-in-fp32";
  const std::string reduced = "  --accumulate-allreduce-grads-in-fp32";
  const struct {
    const char *preset, *flags;
  } kCases[] = {
      {"torch-autocast-bf16", ""},
      {"fp8-current", "  --fp8-format hybrid  --fp8-recipe tensorwise"},
      {"fp8-blockwise", "  --fp8-format e4m3  --fp8-recipe blockwise"},
      {"mxfp8", "  --fp8-format e4m3  --fp8-recipe mxfp8"},
      {"nvfp4-hadamard", "  --fp4-format e2m1  --fp4-recipe nvfp4"},
      {"nvfp4",
       "  --fp4-format e2m1  --fp4-recipe custom  --fp4-quantizer-factory mine.quantizer_factory"},
      {"mxfp8-bf16-wgrad",
       "  --fp8-format e4m3  --fp8-recipe custom  --fp8-quantizer-factory mine.quantizer_factory"},
      {"fp8-delayed",
       "  --fp8-format hybrid  --fp8-recipe delayed  --fp8-margin 0  --fp8-amax-history-len 1024  "
       "--fp8-amax-compute-algo max"},
  };
  for (const auto& c : kCases) {
    CAPTURE(c.preset);
    const Written out = megatron(fmt::format("extends = \"{}\"\n", c.preset));
    CHECK(out.flags == "  " + plain + c.flags + reduced);
    CHECK(out.has("head: rounded in the policy") == !std::string(c.flags).empty());
    CHECK(out.has("use fast accumulation") == (out.flags.find("tensorwise") != std::string::npos ||
                                               out.flags.find("delayed") != std::string::npos));
    CHECK(out.has("no operation is cast by itself; in the policy these are in FP32: softmax"));
  }
  CHECK(megatron("extends = \"fp8-rowwise\"\n").has("--emit torchao does"));
}

TEST_CASE("blocks at the start and at the end stay in BF16, others are a sentence") {
  const std::string base = "extends = \"mxfp8\"\n" + in_bf16("head");
  const std::string first_last = "--first-last-layers-bf16  --num-layers-at-";
  const Written both = megatron(base + in_bf16("net.layers.0.*") + in_bf16("net.layers.[23].*") +
                                in_bf16("net.layers.2.*") + in_bf16("net.layers.3.*"));
  CHECK(both.flags.find(first_last + "start-in-bf16 1  --num-layers-at-end-in-bf16 2") !=
        std::string::npos);
  CHECK(both.unsaid.size() == 1);  // autocast
  const Written middle = megatron(base + in_bf16("net.layers.1.*"));
  CHECK(middle.flags.find(first_last) == std::string::npos);
  CHECK(middle.has("net.layers.1.qkv, net.layers.1.mlp.fc1: not rounded in the policy"));
  const Written part = megatron(base + in_bf16("net.layers.0.qkv"));
  CHECK(part.flags.find(first_last) == std::string::npos);
  CHECK(part.has("net.layers.0.qkv: not rounded"));
  const Written delayed =
      megatron("extends = \"fp8-delayed\"\n" + in_bf16("head") + in_bf16("net.layers.0.*"));
  CHECK(delayed.flags.find(first_last) == std::string::npos);
  CHECK(delayed.has("Megatron refuses blocks in BF16 with delayed scaling"));
  const Written wide =
      megatron(base + "[[rule]]\nlayer = \"net.layers.0.*\"\ncompute = \"fp32\"\n");
  CHECK(wide.has("computed in fp32; Megatron has no flag for layers by name"));
}

TEST_CASE("loss scale and reduction are flags") {
  const Written fp16 = megatron("extends = \"torch-autocast-fp16\"\n");
  CHECK(fp16.flags.starts_with("  --fp16"));
  CHECK(fp16.flags.find("--initial-loss-scale 65536  --min-loss-scale 1  --loss-scale-window 2000  "
                        "--hysteresis 1") != std::string::npos);
  CHECK(fp16.has("follows the rule of torch-dynamic"));
  const Written own = megatron(
      "extends = \"torch-autocast-fp16\"\n[loss_scale]\nkind = \"megatron\"\nhysteresis = 3\n");
  CHECK(own.flags.find("--loss-scale-window 1000  --hysteresis 3") != std::string::npos);
  CHECK_FALSE(own.has("follows the rule"));
  CHECK(megatron("extends = \"torch-autocast-fp16\"\n[loss_scale]\nkind = \"static\"\ninit_scale = "
                 "128.0\n")
            .flags.find("--loss-scale 128") != std::string::npos);
  const Written masters = megatron("extends = \"pure-bf16-master\"\n");
  CHECK(masters.flags == "  --bf16  --grad-reduce-in-bf16");
  CHECK_FALSE(masters.has("masters"));
  CHECK(megatron("extends = \"torch-autocast-bf16\"\n[all_reduce]\nformat = \"fp16\"\n")
            .has("Gradients are reduced in fp16"));
  CHECK(megatron("extends = \"fp32\"\n").flags.empty());
}

}  // namespace
}  // namespace lockstep

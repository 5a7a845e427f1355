// Policies: the embedded presets, their lists, and every mistake that a policy file can have.
#include <doctest/doctest.h>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/graph/composed_ops.h"
#include "src/policy/find_policy.h"
#include "src/policy/foreign_op_names.h"
#include "src/policy/policy.h"
#include "tests/support/folders.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

using testing::has;

// All problems of a policy text, one per line; "" when there is none.
std::string problems_of_text(const std::string& toml) {
  return testing::problems_in([&] { parse_policy(toml, "mine.toml"); });
}

CastClass class_under(const Policy& policy, const OpDef& op) {
  const auto listed = policy.op_class.find(std::string(op.name));
  if (listed != policy.op_class.end()) return listed->second;
  return policy.unlisted.value_or(op.cast_class);
}

TEST_CASE("presets: the rows, and each is found by its label") {
  std::vector<std::string> labels;
  for (const Policy& preset : presets()) {
    CAPTURE(preset.label());
    labels.push_back(preset.label());
    CHECK_FALSE(preset.help.empty());
    CHECK_FALSE(preset.source.empty());
    CHECK(find_policy(preset.label()).hash() == preset.hash());
  }
  CHECK(join(labels, " ") ==
        "apex-o0:1 apex-o1:1 apex-o2:1 apex-o3:1 as-captured-bf16:1 as-captured-bf16-cpu:1 "
        "as-captured-bf16-master:1 as-captured-bf16-master-cpu:1 as-captured-fp16:1 "
        "as-captured-fp16-cpu:1 as-captured-fp16-master:1 as-captured-fp16-master-cpu:1 "
        "bf16-fp32-head:1 bf16-mxfp8-backward:1 deepseek-v3:1 fp16-optimizer-dynamic:1 "
        "fp16-optimizer-static:1 fp16-rl:1 fp32:1 fp8-blockwise:1 fp8-blockwise-torchao:1 "
        "fp8-current:1 fp8-current-bf16-ends:1 fp8-delayed:1 fp8-rowwise:1 "
        "fp8-rowwise-bf16-wgrad:1 fp8-tensorwise:1 fsdp2-bf16:1 fsdp2-bf16-param-reduce:2.14 "
        "fsdp2-bf16-param-reduce:2.15 half:1 half-bn-fp32:1 mxfp8:1 mxfp8-bf16-backward:1 "
        "mxfp8-bf16-wgrad:1 mxfp8-nvfp4-backward:1 mxnet-amp:2.0 mxnet-amp-bf16:2.0 "
        "mxnet-multi-precision:1 mxnet-multi-precision-fp32-softmax:1 nvfp4:1 nvfp4-bf16-ends:1 "
        "nvfp4-hadamard:1 nvfp4-hadamard-drawn:1 "
        "pure-bf16:1 pure-bf16-kahan:1 pure-bf16-master:1 pure-bf16-stochastic:1 pure-fp16:1 "
        "pure-fp16-kahan:1 pure-fp16-master:1 pure-fp16-stochastic:1 tf32:1 tf32-conv:1 "
        "tf32-matmul:1 torch-autocast-bf16:2.11 torch-autocast-bf16:2.12 "
        "torch-autocast-bf16-cpu:2.13 torch-autocast-fp16:2.11 torch-autocast-fp16:2.12 "
        "torch-autocast-fp16-cpu:2.13");
}

TEST_CASE("presets: without a version the newest, by alias too") {
  CHECK(find_policy("torch-autocast-fp16").version == "2.12");
  CHECK(find_policy("autocast").label() == "torch-autocast-fp16:2.12");
  CHECK(find_policy("autocast:2.11").label() == "torch-autocast-fp16:2.11");
}

TEST_CASE("presets: unknown names and versions") {
  const auto message = [](const std::string& name) {
    return testing::error_of([&] { find_policy(name); });
  };
  CHECK(has(message("torch-autocst-fp16"), "did you mean 'torch-autocast-fp16'?"));
  CHECK(has(message("torch-autocast-fp16:2.13"), "versions: 2.11, 2.12"));
  CHECK(has(message("policies/mine"), "ends in .toml"));
  CHECK(has(message("no/such/file.toml"), "no/such/file.toml"));
  CHECK(has(message("fp16"),
            "no such preset; presets of fp16: as-captured-fp16, pure-fp16, torch-autocast-fp16"));
  CHECK(has(message("bf16"),
            "presets of bf16: as-captured-bf16, fsdp2-bf16, mxnet-amp-bf16, pure-bf16, "
            "torch-autocast-bf16"));
  CHECK(has(message("fp64"), "'fp64': this is a lane, not a policy"));
  CHECK(has(message("twin"), "--lanes fp32,twin"));
  CHECK(has(message("tf32@hopper"), "only a lane has a target, not a policy; leave '@hopper' out"));
}

TEST_CASE("policy files: a file name that cannot be a policy's name") {
  CHECK(parse_policy("name = 'mine'", "my policy.toml").name == "mine");
  CHECK_THROWS_WITH_AS(parse_policy("", "dir/my policy.toml"),
                       doctest::Contains("'dir/my policy.toml': name, by default the file's "
                                         "without .toml, 'my policy': must not be empty"),
                       InputError);
}

// The ops' own rows and the preset's lists are two definitions of one fact. A row follows the
// newest version: 2.12 moved rms_norm.
TEST_CASE("torch presets: their lists agree with the ops' cast classes") {
  for (const char* name : {"torch-autocast-fp16:2.11", "torch-autocast-fp16:2.12",
                           "torch-autocast-bf16:2.11", "torch-autocast-bf16:2.12"}) {
    const Policy policy = find_policy(name);
    for (const OpDef& op : ops()) {
      if (op.vjp == nullptr) continue;
      CAPTURE(name);
      CAPTURE(op.name);
      const bool moved = op.name == "rms_norm" && policy.version == "2.11";
      CHECK(to_string(class_under(policy, op)) ==
            to_string(moved ? CastClass::kFollow : op.cast_class));
    }
    for (const ComposedOp& op : composed_ops()) {
      CAPTURE(op.name);
      CHECK(to_string(policy.class_of(std::string(op.name))) == to_string(op.cast_class));
    }
  }
}

TEST_CASE("torch presets: what 2.12 changed, and what BF16 shares with FP16") {
  const Policy fp16_old = find_policy("torch-autocast-fp16:2.11");
  const Policy fp16 = find_policy("torch-autocast-fp16:2.12");
  const Policy bf16 = find_policy("torch-autocast-bf16:2.12");
  CHECK_FALSE(fp16_old.op_class.contains("rms_norm"));
  CHECK(fp16.op_class.at("rms_norm") == CastClass::kFp32);
  CHECK(fp16.op_class.size() == fp16_old.op_class.size() + 1);
  CHECK(bf16.op_class == fp16.op_class);
  CHECK(fp16.low->name == "fp16");
  CHECK(bf16.low->name == "bf16");
  CHECK(fp16.extends == "torch-autocast-fp16:2.11");

  CHECK(fp16.loss_scale.kind == "torch-dynamic");
  CHECK(fp16.loss_scale.init_scale == 65536);
  CHECK(fp16.loss_scale.growth_factor == 2);
  CHECK(fp16.loss_scale.backoff_factor == 0.5);
  CHECK(fp16.loss_scale.growth_interval == 2000);
  CHECK(bf16.loss_scale.kind == "none");
  CHECK(fp16.weight->is_fp32());
  CHECK_FALSE(fp16.master_weights);
}

// Entries of the source's lists, counted there: 35 low precision (overload and CUDA extras
// included), 58 fp32, 17 fp32_set_opt_dtype, 3 fp32_append_dtype, 11 promote.
TEST_CASE("torch presets: no entry of the lists is lost") {
  const std::string text = find_policy("torch-autocast-fp16:2.11").text;
  const auto count = [&](const std::string& key) {
    const size_t begin = text.find("\n" + key + " = [");
    size_t quotes = 0;
    for (size_t i = begin; text[i] != ']'; ++i) quotes += text[i] == '"';
    return quotes / 2;
  };
  CHECK(count("low_precision") == 33 + 2);
  CHECK(count("fp32") == 58 + 17 + 3);
  CHECK(count("promote") == 11);
}

TEST_CASE("other systems' op names: overloads are cut, a name may mean several ops, rows are ops") {
  const auto named = [](OpNames system, const char* name) {
    return join(lockstep_op_names(system, name), " ");
  };
  CHECK(named(OpNames::kTorch, "softmax.int") == "softmax");
  CHECK(named(OpNames::kTorch, "nll_loss") == "cross_entropy nll_loss");
  CHECK(named(OpNames::kTorch, "norm.ScalarOpt_dim") == "norm");
  CHECK(named(OpNames::kTorch, "relu") == "relu");
  CHECK(named(OpNames::kTorch, "interpolate") == "upsample_nearest2d upsample_bilinear2d");
  CHECK(named(OpNames::kMxnet, "RNN") == "lstm gru");
  CHECK(named(OpNames::kMxnet, "softmax") == "softmax");
  for (const OpNames system : {OpNames::kTorch, OpNames::kMxnet}) {
    for (const OpName& row : foreign_op_names(system)) {
      CAPTURE(row.foreign);
      CHECK((find_composed_op(row.lockstep) != nullptr || find_op(row.lockstep).vjp != nullptr));
    }
  }
  CHECK_THROWS_WITH_AS(find_op_names("mxnt"), doctest::Contains("did you mean 'mxnet'?"),
                       InputError);
}

TEST_CASE("tf32 and pure-fp16 presets") {
  const Policy tf32 = find_policy("tf32");
  CHECK(tf32.gemm_operand->name == "tf32");
  CHECK(tf32.gemm_operand_rounding == Rounding::kNearestAway);
  CHECK(tf32.gemm_accumulator->name == "fp32_fused");
  CHECK(tf32.low == nullptr);
  CHECK(tf32.loss_scale.kind == "none");

  const Policy pure = find_policy("pure-fp16");
  for (const Format* format :
       {pure.weight, pure.buffer, pure.input, pure.optimizer_arithmetic, pure.optimizer_state,
        pure.gemm_accumulator->format, pure.reduce_accumulator->format}) {
    CHECK(format->name == "fp16");
  }
  CHECK_FALSE(pure.master_weights);
  CHECK(pure.loss_scale.kind == "none");
}

TEST_CASE("policy files: an empty one is FP32 and is named after its file") {
  const Policy policy = parse_policy("", "somewhere/plain.toml");
  CHECK(policy.label() == "plain");
  for (const Format* format : {policy.weight, policy.buffer, policy.input,
                               policy.optimizer_arithmetic, policy.optimizer_state}) {
    CHECK(format->is_fp32());
  }
  CHECK(policy.low == nullptr);
  CHECK(policy.gemm_operand == nullptr);
  CHECK(policy.gemm_accumulator->name == "fp32_fused");
  CHECK(policy.reduce_accumulator->name == "fp32_fused");
  CHECK(policy.loss_scale.kind == "none");
  CHECK(policy.rules.empty());
}

TEST_CASE("policy files: extends keeps the keys that are not set") {
  const Policy base = find_policy("torch-autocast-fp16:2.12");
  const Policy policy = parse_policy(R"(
extends = "torch-autocast-fp16:2.12"
[loss_scale]
kind = "static"
init_scale = 1024
[[rule]]
layer = "fc3"
compute = "fp32"
)",
                                     "recommended.toml");
  CHECK(policy.label() == "recommended");
  CHECK(policy.extends == "torch-autocast-fp16:2.12");
  CHECK(policy.extends_hash == base.hash());
  CHECK(policy.low->name == "fp16");
  CHECK(policy.op_class == base.op_class);
  CHECK(policy.unlisted == CastClass::kFollow);
  CHECK(policy.loss_scale.kind == "static");
  CHECK(policy.loss_scale.init_scale == 1024);
  REQUIRE(policy.rules.size() == 1);
  CHECK(policy.rules[0].layer == "fc3");
  CHECK(policy.rules[0].compute->is_fp32());
  CHECK(policy.rules[0].line == 6);
  CHECK(policy.hash() != base.hash());
}

TEST_CASE(
    "policy files: a scaler has its system's defaults, and another kind starts with its own") {
  const LossScaleSpec deepspeed =
      parse_policy("[loss_scale]\nkind = 'deepspeed'\nhysteresis = 3", "a.toml").loss_scale;
  CHECK(deepspeed.init_scale == 65536);
  CHECK(deepspeed.growth_interval == 1000);
  CHECK(deepspeed.min_scale == 1);
  CHECK(deepspeed.hysteresis == 3);
  CHECK(deepspeed.raise_at_min);
  const std::string base = "extends = 'torch-autocast-fp16'\n[loss_scale]\n";
  const Policy same = parse_policy(base + "max_scale = 1048576\nskip = 'group'", "a.toml");
  CHECK(same.loss_scale.kind == "torch-dynamic");
  CHECK(same.loss_scale.max_scale == 1048576);
  CHECK(same.loss_scale_use.skip_by_group);
  const Policy other = parse_policy(base + "kind = 'keras'\nreplay = true", "a.toml");
  CHECK(other.loss_scale.init_scale == 32768);
  CHECK(other.loss_scale_use.replay);
  CHECK_FALSE(other.loss_scale_use.clip_before_unscale);
}

TEST_CASE("policy files: a listed op moves, torch's names are understood, none switches off") {
  const Policy policy = parse_policy(R"(
extends = "torch-autocast-fp16"
[autocast]
low_precision = ["softmax"]
promote = ["nll_loss"]
)",
                                     "moved.toml");
  CHECK(policy.op_class.at("softmax") == CastClass::kLowPrecision);
  CHECK(policy.op_class.at("cross_entropy") == CastClass::kPromote);
  CHECK(policy.op_class.at("linear") == CastClass::kLowPrecision);
  const Policy off = parse_policy("extends = 'tf32'\n[gemm]\noperand = 'none'", "off.toml");
  CHECK(off.gemm_operand == nullptr);
}

TEST_CASE("policy files: the hash is of the text and of the preset it extends") {
  const std::string text = "[storage]\nweight = 'bf16'\n";
  CHECK(parse_policy(text, "a.toml").hash() == parse_policy(text, "b.toml").hash());
  CHECK(parse_policy(text, "a.toml").hash() != parse_policy(text + "\n", "a.toml").hash());
  Policy changed_base = parse_policy("extends = 'tf32'", "a.toml");
  const uint64_t before = changed_base.hash();
  changed_base.extends_hash ^= 1;
  CHECK(changed_base.hash() != before);
}

// One row per mistake: the text, and what the message must contain.
TEST_CASE("policy files: every mistake has a line, a constraint and a hint") {
  struct Mistake {
    std::string toml;
    std::vector<std::string> parts;
  };
  const std::vector<Mistake> mistakes = {
      {"[storage]\nwieght = 'fp16'", {"line 2: [storage] wieght", "did you mean 'weight'?"}},
      {"[storge]\nweight = 'fp16'", {"line 1: storge", "did you mean 'storage'?"}},
      {"[storage]\nweight = 'fp61'",
       {"line 2: [storage] weight: format 'fp61'", "did you mean 'fp16'?"}},
      {"[storage]\nweight = 'e4m33'", {"line 2: [storage] weight = 'e4m33': "}},
      {"[storage]\nweight = 'fp64'", {"must fit in fp32", "lane named fp64"}},
      {"[storage]\nweight = 16", {"line 2: [storage] weight", "integer", "must be a string"}},
      {"[storage]\nrounding = 'nearest'",
       {"line 2: [storage] rounding: ", "'nearest'", "nearest_even"}},
      {"[storage]\nstream = -1", {"= -1", "0..2^32-1"}},
      {"[gemm]\naccumulator = 'fp32_fusd'",
       {"line 2: [gemm] accumulator: ", "'fp32_fusd'", "fp32_fused"}},
      {"[autocast]\nformat = 'fp16'\nfp32 = ['linaer']",
       {"line 3: [autocast] fp32 has 'linaer'", "did you mean 'linear'?"}},
      {"[autocast]\nformat = 'fp16'\nfp32 = ['linear']\npromote = ['linear']",
       {"line 4: [autocast] promote has 'linear'", "fp32 has too"}},
      {"[autocast]\nformat = 'fp16'\nfp32 = ['relu_backward']", {"no such forward op"}},
      {"[autocast]\nformat = 'fp16'\nfp32 = ['erfinv']", {"'erfinv': no such forward op"}},
      {"[autocast]\nfp32 = ['linear']", {"no format", "add format"}},
      {"[autocast]\nformat = 'fp16'\nunlisted = 'folow'", {"did you mean 'follow'?"}},
      {"[optimizer]\nmaster_weights = 1", {"must be true or false"}},
      {"[optimizer]\nmaster_weights = true", {"no masters", "[storage] weight"}},
      {"[optimizer]\nmaster = 'bf16'", {"master_weights is false"}},
      {"[storage]\nweight = 'fp16'\n[optimizer]\nmaster_weights = true\nmaster = 'bf16'",
       {"must hold every fp16 weight"}},
      {"[optimizer]\nupdate_rounding = 'kahn'", {"did you mean 'kahan'?"}},
      {"[optimizer]\nsteps = 'troch'", {"line 2: [optimizer] steps", "did you mean 'torch'?"}},
      {"[storage]\nkeep_fp32 = ['batchnorm']",
       {"line 2: [storage] keep_fp32 has 'batchnorm'", "did you mean 'batch_norm'?"}},
      {"[model]\noutput = 'fp61'", {"line 2: [model] output", "did you mean 'fp16'?"}},
      {"[model]\noutptu = 'fp16'", {"line 2: [model] outptu", "did you mean 'output'?"}},
      {"[gemm]\noperand = 'tf32'\noperand_ops = ['conv']",
       {"line 3: [gemm] operand_ops has 'conv'"}},
      {"[gemm]\noperand_ops = ['conv2d']", {"operand_ops", "has no effect", "operand = \"tf32\""}},
      {"[autocast]\nformat = 'fp16'\nnames = 'mxnt'", {"[autocast] names", "'mxnet'?"}},
      {"[autocast]\nformat = 'fp16'\nnames = 'mxnet'\nfp32 = ['Convolutoin']",
       {"line 4: [autocast] fp32 has 'Convolutoin'", "did you mean 'Convolution'?"}},
      {"[[rule]]\nlayer = 'fc1'\nautocast = 'off'", {"line 3: [[rule]] autocast", "no [autocast]"}},
      {"extends = 'autocast'\n[[rule]]\nautocast = 'on'", {"= 'on': must be \"off\""}},
      {"extends = 'autocast'\n[[rule]]\nautocast = 'off'\ncompute = 'fp32'",
       {"has compute and autocast"}},
      {"[loss_scale]\nkind = 'static'\ninit_scale = -8", {"= -8: must be above 0"}},
      {"[loss_scale]\nkind = 'static'\ninit_scale = 1e-50", {"= 1e-50: must be above 0"}},
      {"name = 'fp64'\nextends = 'tf32'", {"name = 'fp64'", "other than fp32, fp64 and twin"}},
      {"name = 'twin'", {"name = 'twin'", "other than fp32, fp64 and twin"}},
      {"[loss_scale]\nkind = 'static'\ninit_scale = 1e39", {"= 1e+39: must be above 0 and below"}},
      {"[loss_scale]\nkind = 'torch-dynamic'\ngrowth_factor = 0.5",
       {"line 3: [loss_scale] growth_factor = 0.5: must be above 1"}},
      {"[loss_scale]\nkind = 'torch-dynamic'\nbackoff_factor = 1",
       {"= 1: must be above 0 and below 1"}},
      {"[loss_scale]\nkind = 'torch-dynamic'\ngrowth_interval = 0", {"must be at least 1"}},
      {"[loss_scale]\ninit_scale = 8", {"has no effect: kind is none"}},
      {"[loss_scale]\nkind = 'torch-dynamik'", {"line 2: [loss_scale] kind: ", "torch-dynamic"}},
      {"[loss_scale]\nkind = 'apex'\nhysteresis = 2",
       {"line 3: [loss_scale] hysteresis has no effect: kind is apex",
        "kinds that take it: deepspeed, megatron"}},
      {"[loss_scale]\nkind = 'megatron'\nhysteresis = 0", {"= 0: must be at least 1"}},
      {"[loss_scale]\nkind = 'fairseq'\ntolerance = 1.5",
       {"= 1.5: must be at least 0 and at most 1"}},
      {"[loss_scale]\nkind = 'apex'\nmax_scale = 0", {"= 0: must be above 0 and at most inf"}},
      {"[loss_scale]\nkind = 'apex'\nmin_scale = -1", {"= -1: must be at least 0 and below"}},
      {"[loss_scale]\nkind = 'apex'\nmin_scale = 131072",
       {"= 131072: must be at most init_scale = 65536"}},
      {"[loss_scale]\nkind = 'deepspeed'\nraise_at_min = 1", {"must be true or false"}},
      {"[loss_scale]\nkind = 'static'\nreplay = true", {"would overflow again"}},
      {"[loss_scale]\nkind = 'apex'\nreplay = true\nreplay_limit = 1", {"must be at least 2"}},
      {"[loss_scale]\nkind = 'apex'\nreplay_limit = 3", {"replay is false"}},
      {"[loss_scale]\nclip = 'before_unscale'", {"has no effect: kind is none"}},
      {"[all_reduce]\norder = 'star'", {"line 2: [all_reduce] order", "order 'star': unknown"}},
      {"[all_reduce]\ndivide = 'never'", {"divide 'never': unknown"}},
      {"[all_reduce]\nformat = 'fp64'", {"must fit in fp32"}},
      {"[all_reduce]\nworkers = 0", {"line 2: [all_reduce] workers = 0: must be at least 1"}},
      {"[accumulate]\nformat = 'fp64'", {"must fit in fp32"}},
      {"[cuda]\nworkspace_mib = -1", {"line 2: [cuda] workspace_mib = -1: must be in 0..4096"}},
      {"[cuda]\nresults = 'fp16'", {"line 2: [cuda] results: 'fp16': must be fp32 or factors"}},
      {"[cuda]\nreduced_precision_reduction = false",
       {"line 2: [cuda] reduced_precision_reduction has no effect: results is fp32"}},
      {"[cuda]\nsplit_k = 'none'", {"line 2: [cuda] split_k"}},
      {"[cuda]\nsplitk = true", {"line 2: [cuda] splitk"}},
      {"[loss_scale]\nkind = 'apex'\nclip = 'first'",
       {"line 3: [loss_scale] clip: 'first': must be after_unscale or before_unscale"}},
      {"[loss_scale]\nkind = 'apex'\nskip = 'layer'", {"must be step or group"}},
      {"[loss_scale]\nkind = 'apex'\nper_loss = 'own'",
       {"line 3: [loss_scale] per_loss: 'own': must be shared or separate"}},
      {"[loss_scale]\nper_loss = 'separate'", {"has no effect: kind is none"}},
      {"[loss_scale]\nkind = 'apex'\nper_loss = 'separate'\nclip = 'before_unscale'",
       {"line 3: [loss_scale] per_loss = \"separate\"", "never form one gradient"}},
      {"[[rule]]\nlayer = 'fc1'\nloss_scale = 3", {"= 3: must be a power of two"}},
      {"[[rule]]\nlayer = 'fc1'\nloss_scale = 0", {"= 0: must be a power of two"}},
      {"[[rule]]\nrole = 'weight'\nloss_scale = 8", {"match layer and op only"}},
      {"[[rule]]\nlayer = 'fc1'", {"line 1: [[rule]] sets nothing", "give compute"}},
      {"[[rule]]\nop = 'conv2'\ncompute = 'fp32'", {"line 2: [[rule]] op: op 'conv2'", "conv2d"}},
      {"[[rule]]\nrole = 'grad_wieght'\nformat = 'fp32'", {"did you mean 'grad_weight'?"}},
      {"[[rule]]\npoint = 'ouput'\nformat = 'fp32'", {"did you mean 'output'?"}},
      {"[[rule]]\nrole = 'weight'\ncompute = 'fp32'", {"match layer and op only"}},
      {"[[rule]]\nformat = 'bf16'\ncompute = 'fp32'", {"write two rules"}},
      {"[[rule]]\npoint = 'accumulator'\nformat = 'bf16'", {"use accumulator"}},
      {"[rule]\ncompute = 'fp32'", {"array of tables", "[[rule]]"}},
      {"aliases = ['a']", {"line 1: aliases has no effect"}},
      {"[loss_scale]\nkind = 'static'\ninit_scale = nan", {"= nan: must be above 0"}},
      {"extends = 5", {"line 1: extends", "must be a string"}},
      {"name = 'a@b'", {"must not be empty or contain"}},
      {"extends = 'torch-autocast-fp61'", {"line 1: extends", "did you mean"}},
      {"extends = 'other.toml'", {"a policy extends a preset"}},
      {"[storage\nweight = 'fp16'", {"line 1: not TOML"}},
  };
  for (const Mistake& mistake : mistakes) {
    const std::string problems = problems_of_text(mistake.toml);
    CAPTURE(mistake.toml);
    CAPTURE(problems);
    for (const std::string& part : mistake.parts) {
      CAPTURE(part);
      CHECK(has(problems, part));
    }
  }
}

TEST_CASE("policy files: all mistakes are reported at once") {
  const std::string problems = problems_of_text(R"(nmae = "x"
[storage]
weight = "fp61"
[loss_scale]
kind = "torch-dynamic"
growth_factor = -2.0
[[rule]]
layer = "fc1"
)");
  CHECK(has(problems, "line 1: nmae"));
  CHECK(has(problems, "line 3: [storage] weight"));
  CHECK(has(problems, "line 6: [loss_scale] growth_factor"));
  CHECK(has(problems, "line 7: [[rule]]"));
  CHECK(split(problems, '\n').size() == 4);
}

// The example in the documentation names every key; it must remain valid.
TEST_CASE("[cuda]: what a library may do to sums, key by key") {
  const LibraryRules none = parse_policy("name = 'x'", "mine.toml").cuda;
  CHECK(none == LibraryRules{});
  const std::string keys =
      "[cuda]\nsplit_k = false\nresults = 'factors'\nreduced_precision_reduction = false\n"
      "workspace_mib = 0";
  const LibraryRules all = parse_policy(keys, "mine.toml").cuda;
  CHECK(all == LibraryRules{.splits_k = false,
                            .narrow_results = true,
                            .adds_parts_narrow = false,
                            .workspace_bytes = 0});
  const Policy wide = parse_policy("[cuda]\nworkspace_mib = 64", "mine.toml");
  CHECK(wide.cuda == LibraryRules{.workspace_bytes = int64_t{64} << 20});
}

TEST_CASE("docs/policy.md: the example is a valid policy") {
  const std::string page = read_text_file(testing::kSourceFolder + std::string("/docs/policy.md"));
  const std::string fence = "```toml\n";
  const size_t begin = page.find(fence) + fence.size();
  const std::string example = page.substr(begin, page.find("```", begin) - begin);
  CHECK(problems_of_text(example) == "");
  const Policy policy = parse_policy(example, "example.toml");
  CHECK(policy.rules.size() >= 3);
  CHECK(policy.master_weights);
}

TEST_CASE("[dropout]: the scale is exact, except in PyTorch's CPU autocast") {
  CHECK_FALSE(parse_policy("", "mine.toml").rounds_dropout_scale);
  CHECK(parse_policy("[dropout]\nscale = 'rounded'", "mine.toml").rounds_dropout_scale);
  CHECK(find_policy("torch-autocast-bf16-cpu").rounds_dropout_scale);
  CHECK(find_policy("torch-autocast-fp16-cpu").rounds_dropout_scale);
  CHECK_FALSE(find_policy("torch-autocast-bf16").rounds_dropout_scale);
  CHECK(problems_of_text("[dropout]\nscale = 'half'").find("must be exact or rounded") !=
        std::string::npos);
}

TEST_CASE("[attention]: whole rows, except in PyTorch's CPU autocast") {
  const FlashKernel *whole = &find_flash_kernel("whole_rows"),
                    *cpu = &find_flash_kernel("torch_cpu");
  CHECK(parse_policy("", "mine.toml").flash_kernel == whole);
  CHECK(parse_policy("[attention]\nflash = 'torch_cpu'", "mine.toml").flash_kernel == cpu);
  CHECK(find_policy("torch-autocast-bf16-cpu").flash_kernel == cpu);
  CHECK(find_policy("torch-autocast-fp16-cpu").flash_kernel == cpu);
  CHECK(find_policy("torch-autocast-bf16").flash_kernel == whole);
  CHECK(problems_of_text("[attention]\nflash = 'torch_cuda'").find("'torch_cuda': unknown") !=
        std::string::npos);
}

TEST_CASE("[softmax]: log_softmax rounds at its end, except in PyTorch's CPU autocast") {
  CHECK_FALSE(parse_policy("", "mine.toml").rounds_log_softmax);
  CHECK(parse_policy("[softmax]\nlog = 'torch_cpu'", "mine.toml").rounds_log_softmax);
  CHECK(find_policy("torch-autocast-bf16-cpu").rounds_log_softmax);
  CHECK(find_policy("torch-autocast-fp16-cpu").rounds_log_softmax);
  CHECK_FALSE(find_policy("torch-autocast-bf16").rounds_log_softmax);
  CHECK(problems_of_text("[softmax]\nlog = 'cuda'").find("must be fused or torch_cpu") !=
        std::string::npos);
}

TEST_CASE("CUDA's autocast: cross_entropy in two parts, convolutions rounded before their bias") {
  const Policy plain = parse_policy("", "mine.toml");
  CHECK_FALSE(plain.splits_cross_entropy);
  CHECK_FALSE(plain.rounds_before_conv_bias);
  for (const char* on_cuda :
       {"torch-autocast-fp16:2.11", "torch-autocast-fp16", "torch-autocast-bf16", "fp8-current",
        "fp8-delayed", "mxfp8", "nvfp4"}) {
    CAPTURE(on_cuda);
    CHECK(find_policy(on_cuda).splits_cross_entropy);
    CHECK(find_policy(on_cuda).rounds_before_conv_bias);
  }
  for (const char* other :
       {"torch-autocast-fp16-cpu", "torch-autocast-bf16-cpu", "fp32", "pure-fp16"}) {
    CAPTURE(other);
    CHECK_FALSE(find_policy(other).splits_cross_entropy);
    CHECK_FALSE(find_policy(other).rounds_before_conv_bias);
  }
  CHECK(problems_of_text("[autocast]\nformat = 'fp16'\ncross_entropy = 'both'")
            .find("must be whole or parts") != std::string::npos);
  CHECK(problems_of_text("[gemm]\nconv_bias = 'none'").find("must be fused or rounded") !=
        std::string::npos);
}

TEST_CASE("[recurrent]: cells are fused, except in PyTorch's CPU autocast") {
  CHECK(parse_policy("", "mine.toml").recurrent_cells == RecurrentCells::kFused);
  CHECK(parse_policy("[recurrent]\ncells = 'torch_cpu'", "mine.toml").recurrent_cells ==
        RecurrentCells::kTorchCpu);
  CHECK(find_policy("torch-autocast-bf16-cpu").recurrent_cells == RecurrentCells::kTorchCpu);
  CHECK(find_policy("torch-autocast-fp16-cpu").recurrent_cells == RecurrentCells::kTorchCpu);
  CHECK(find_policy("torch-autocast-bf16").recurrent_cells == RecurrentCells::kFused);
  CHECK(problems_of_text("[recurrent]\ncells = 'cudnn'").find("must be fused or torch_cpu") !=
        std::string::npos);
}

TEST_CASE("[all_reduce]: DistributedDataParallel's by default; each key alone") {
  const AllReduce torch = parse_policy("", "mine.toml").all_reduce;
  CHECK(torch.format == nullptr);
  CHECK(torch.order == AllReduce::Order::kRing);
  CHECK(torch.divide == AllReduce::Divide::kBefore);
  CHECK(torch.result == nullptr);
  CHECK_FALSE(torch.workers.has_value());
  const AllReduce other = parse_policy(
                              "[all_reduce]\nformat = 'bf16'\norder = 'tree'\ndivide = 'after'\n"
                              "result = 'fp32'\nworkers = 4",
                              "mine.toml")
                              .all_reduce;
  CHECK(other.format == &find_format("bf16"));
  CHECK(other.order == AllReduce::Order::kTree);
  CHECK(other.divide == AllReduce::Divide::kAfter);
  CHECK(other.result == &find_format("fp32"));
  CHECK(other.workers == 4);
}

TEST_CASE("[optimizer]: masters' format and how updates are rounded") {
  const Policy plain = parse_policy("[storage]\nweight = 'bf16'", "plain.toml");
  CHECK(plain.master->is_fp32());
  CHECK(plain.update_rounding == UpdateRounding::kStorage);
  const Policy policy = parse_policy(
      "[storage]\nweight = 'fp8_e4m3'\n[optimizer]\nmaster_weights = true\nmaster = 'fp16'\n"
      "update_rounding = 'kahan'",
      "kahan.toml");
  CHECK(policy.master->name == "fp16");
  CHECK(policy.update_rounding == UpdateRounding::kKahan);
  CHECK(parse_policy("[optimizer]\nupdate_rounding = 'stochastic'", "s.toml").update_rounding ==
        UpdateRounding::kStochastic);
}

}  // namespace
}  // namespace lockstep

TEST_CASE("a format that is easily mistaken for another is noted, not refused") {
  const lockstep::Policy ieee = lockstep::parse_policy("[storage]\nweight = 'e4m3'", "mine.toml");
  REQUIRE(ieee.notes.size() == 1);
  CHECK(ieee.notes[0].find("240") != std::string::npos);
  CHECK(ieee.notes[0].find("fp8_e4m3") != std::string::npos);
  CHECK(lockstep::parse_policy("[storage]\nweight = 'fp8_e4m3'", "mine.toml").notes.empty());
}

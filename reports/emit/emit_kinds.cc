// THE table of kinds.
#include "reports/emit/emit_kinds.h"

#include <filesystem>

#include "reports/emit/inspect_config.h"
#include "reports/emit/megatron_flags.h"
#include "reports/pytorch/pytorch_module.h"
#include "reports/pytorch/pytorch_recipe.h"
#include "src/core/find_row.h"

namespace lockstep {
namespace {

template <ScalingLibrary library, bool is_sharded>
std::string write_module(const EmitFacts& facts, const std::string& module,
                         std::vector<std::string>& unsaid) {
  PytorchRecipe recipe = pytorch_recipe(facts.policy, facts.graph,
                                        {.library = library, .is_sharded = is_sharded}, unsaid);
  recipe.model = facts.model;
  recipe.evidence = facts.evidence;
  recipe.name = module;
  recipe.trains = facts.trains;
  return pytorch_module(recipe, unsaid);
}

constexpr std::string_view kSaysAutocast =
    "autocast with torch's op lists, layers in FP32 or another 16-bit format, TF32, GradScaler";
constexpr std::string_view kUseModule = "its first lines say how to use it";

constexpr EmitKind kKinds[] = {
    {.name = "pytorch",
     .extension = ".py",
     .help = "a Python module for torch.autocast and GradScaler",
     .says = kSaysAutocast,
     .use = kUseModule,
     .write = write_module<ScalingLibrary::kNone, false>},
    {.name = "torchao",
     .extension = ".py",
     .help = "the same with torchao's FP8, MXFP8 and NVFP4 training",
     .says =
         "that of pytorch; scaled factors of nn.Linear: FP8 by tensor, row or column, gradients "
         "of weights in 16 bits, MXFP8 in four scale rules, NVFP4 with a Hadamard transform",
     .use = kUseModule,
     .write = write_module<ScalingLibrary::kTorchao, false>},
    {.name = "transformer-engine",
     .extension = ".py",
     .help = "the same with a recipe of Transformer Engine and its quantizer factory",
     .says = "that of pytorch; scaled factors of nn.Linear: FP8 with delayed or current scales, in "
             "blocks of 128, MXFP8, NVFP4, and mixtures by product",
     .use = kUseModule,
     .write = write_module<ScalingLibrary::kTransformerEngine, false>},
    {.name = "fsdp2",
     .extension = ".py",
     .help = "the same as pytorch with a MixedPrecisionPolicy for each fully_shard",
     .says = "that of pytorch; formats of the copies of parameters by module, of their reduction, "
             "of inputs and outputs; FP32 masters of 16-bit weights",
     .use = kUseModule,
     .write = write_module<ScalingLibrary::kNone, true>},
    {.name = "te-debug",
     .extension = ".yaml",
     .help =
         "layers and products that Transformer Engine leaves unrounded, for nvidia-dlfw-inspect",
     .says = "linear layers and products (fprop, dgrad, wgrad) that are not rounded",
     .use = "its first lines say how to load it",
     .write = inspect_config},
    {.name = "megatron",
     .extension = ".sh",
     .help = "flags of Megatron-LM's pretraining scripts",
     .says = "BF16 or FP16 with FP32 masters, FP8 and FP4 recipes, first and last blocks in BF16, "
             "loss scale, format of the reduction",
     .use = "source it, and pass \"${LOCKSTEP_FLAGS[@]}\"",
     .write = megatron_flags},
};

}  // namespace

std::span<const EmitKind> emit_kinds() {
  return kKinds;
}

const EmitKind& find_emit_kind(std::string_view name) {
  return find_row("--emit", name, kKinds);
}

std::string emitted_module(const std::string& file) {
  return std::filesystem::path(file).stem().string();
}

}  // namespace lockstep

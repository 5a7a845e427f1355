// The settings of PyTorch and its libraries, as plain data; pytorch_recipe.h fills them from a
// policy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// The arguments of torch.amp.GradScaler.
struct GradScalerArguments {
  double init_scale, growth_factor, backoff_factor;
  int64_t growth_interval;
  // The scale never moves: an overflow skips the step and leaves the scale, and no run reaches the
  // growth interval.
  bool is_static;
};

// torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32.
struct Tf32Switches {
  bool matmul = false, cudnn = false;
};

// Keys of a dict and literals of Python.
using PythonTable = std::vector<std::pair<std::string, std::string>>;
inline std::string python_bool(bool value) {
  return value ? "True" : "False";
}

// A constant of an emitted module: one literal, or a dict of `table`.
struct PythonFact {
  std::string comment, name, value;
  PythonTable table;
};

// Who computes the products of scaled operands.
enum class ScalingLibrary : uint8_t { kNone, kTorchao, kTransformerEngine };

// How the library is called.
struct LibraryCall {
  std::string region;  // of templates/amp.py
  int multiple = 1;    // of the sizes of weights
  std::vector<PythonFact> facts;
  std::string remark;      // how its numbers may differ from the policy's; whole sentences
  bool says_sums = false;  // of its products, as the policy has them
};

struct ScaledLinears {
  std::vector<std::string> layers;  // module paths, in the graph's order
  std::vector<std::string> kept;    // linear layers that rules keep out
  std::string what;     // "fp8_e4m3+saturate (weights: ..., gradients: ...) with current scales"
  std::string library;  // "torchao 0.18"
  LibraryCall call;
};

// FSDP2's MixedPrecisionPolicy, as literals of Python.
struct ShardedPrecision {
  std::string param_dtype, reduce_dtype, output_dtype;
  bool cast_forward_inputs = false;
  PythonTable modules;  // module path -> param_dtype, where it differs
};

// What an emitted module may use besides torch's own autocast.
struct PythonTarget {
  ScalingLibrary library = ScalingLibrary::kNone;
  bool is_sharded = false;  // by FSDP2
};

struct PytorchRecipe {
  std::string format;        // autocast's dtype: fp16 or bf16; "": no autocast
  bool weight_cache = true;  // torch.autocast(cache_enabled=...)
  std::string op_lists;      // the preset whose op lists the policy is nearest to, or ""
  std::vector<std::string> fp32_layers;  // module paths that stay in FP32, in the graph's order
  // Module paths that run under an autocast of their own to another 16-bit format.
  std::vector<std::pair<std::string, std::string>> low_layers;
  std::optional<Tf32Switches> tf32;           // absent: torch's settings stay
  std::optional<GradScalerArguments> scaler;  // absent: none needed
  std::optional<ScaledLinears> scaled;
  std::optional<ShardedPrecision> sharded;
  std::string model, evidence;  // for the module's first lines
  std::string name = "amp";     // of the module's file, without .py
  bool trains = true;           // false: inference, without a loss scale
};

}  // namespace lockstep

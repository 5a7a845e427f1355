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

// How libraries round the scaled operands of linear layers; at least one of the two calls is there.
struct ScaledLinears {
  std::vector<std::string> layers;  // module paths, in the graph's order
  std::string what;  // "fp8_e4m3+saturate, gradients fp8_e5m2+saturate, current scales"
  enum class Torchao : uint8_t { kNone, kFloat8, kMxfp8 } torchao = Torchao::kNone;
  // Of torchao's Float8LinearConfig: "e4m3fn" or "e5m2", and whether scales are powers of two.
  std::string gradient_dtype;
  bool power_of_two = false;
  // A "class" of Transformer Engine's module `recipe` and its arguments; empty: it has none.
  PythonTable transformer_engine;
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
  std::string model, evidence;  // for the module's first lines
  std::string name = "amp";     // of the module's file, without .py
  bool trains = true;           // false: inference, without a loss scale
};

}  // namespace lockstep

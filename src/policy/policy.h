// Which numbers does a lane use where?
// A policy is a TOML file; a preset is one that ships inside the program (presets/*.toml,
// versioned). This header is the file's meaning as plain data; docs/policy.md describes the file.
// It decides nothing about a particular graph: that is lower.h.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/flash_kernel.h"
#include "emulation/kernels/optimizer_args.h"
#include "emulation/kernels/recurrent_rounding.h"
#include "src/graph/cast_class.h"
#include "src/policy/factor_scaling.h"
#include "src/policy/loss_scale.h"

namespace lockstep {

// What [loss_scale] says beside the scaler's own numbers.
struct LossScaleUse {
  bool replay = false;               // an overflowing batch is tried again with the scale after it
  int64_t replay_limit = 40;         // attempts at one batch, the first included
  bool clip_before_unscale = false;  // a mistake, by its name: gradients are clipped while scaled
  bool skip_by_group = false;        // only the groups of parameters that overflowed skip
  // Every loss with a backward pass of its own has a scaler of its own; absent: as the kind has it.
  std::optional<bool> per_loss;
};

// How the sum of a weight (of its master, where there is one) and its update is rounded.
enum class UpdateRounding : uint8_t {
  kStorage,      // as [storage] rounding says for formats narrower than FP32, else to nearest even
  kNearestEven,  // these three in every format
  kStochastic,
  kKahan,  // to nearest even, with a compensation per element that keeps what is lost
};

// [all_reduce]: how the gradients of W workers become one. Everything is rounded to nearest even.
struct AllReduce {
  enum class Order : uint8_t {
    kRing,  // W chunks; the sum of chunk c runs over the workers c + 1, c + 2, ..., c modulo W
    kTree,  // worker r adds r + 1, then r + 2, r + 4, ...: halves in pairs
  };
  const Format* format = nullptr;  // of every addend and every sum; null: the gradient's own
  Order order = Order::kRing;
  bool divides_before = true;  // by W, each worker's gradient; else their sum
};

// [[rule]]: an exception for matching places. Globs; later rules win over earlier ones.
//   compute      the matching ops run with operands and output in this format, forward and backward
//                (an autocast-disabled region when it is fp32); matched by layer and op
//   autocast_off  the matching ops are on no list and follow their operands, as in torch's
//                autocast(enabled=False); matched by layer and op
//   format, rounding     what the value is rounded to at matching sites (layer, op, role, point)
//   accumulator          of matching ops' sums of products
//   loss_scale           a power of two: matching forward ops' backward partners see gradients this
//                        many times as large; they are multiplied on the way in and divided behind
struct PolicyRule {
  std::string layer = "*", op = "*", role = "*", point = "*";
  const Format* compute = nullptr;
  bool autocast_off = false;
  const Format* format = nullptr;
  std::optional<Rounding> rounding;
  const Accumulator* accumulator = nullptr;
  std::optional<double> loss_scale;
  int line = 0;  // in the policy file, for messages
};

struct Policy {
  std::string name, version, help, source;
  std::vector<std::string> aliases;
  std::vector<std::string> notes;  // worth telling the user, though nothing is wrong
  std::string text;                // the TOML it was read from
  std::string extends;             // label of the preset it starts from, or ""
  uint64_t extends_hash = 0;       // that preset's hash()

  // [storage]: formats of what stays between steps, and of the graph's inputs.
  const Format* weight;
  const Format* buffer;
  const Format* input;
  Rounding rounding = Rounding::kNearestEven;  // of every cast and output, unless a rule says so
  uint32_t stream = 0;                         // stochastic rounding stream number
  // Ops whose nodes keep their parameters and buffers in FP32 where they have any parameter.
  std::vector<std::string> keep_fp32;

  // [model]: what graph inputs become where the model reads them, and its values where the loss
  // reads them (OpDef::is_loss); null: as they are.
  const Format *model_input = nullptr, *model_output = nullptr;

  // [autocast]: absent (low == nullptr) means that every op follows its operands.
  const Format* low = nullptr;
  std::map<std::string, CastClass> op_class;  // the policy's own lists
  std::optional<CastClass> unlisted;          // class of ops on no list; absent: the op's own row
  // A weight is cast once, and the parts of its gradient add up in the cast's format; otherwise
  // each is widened first (torch.autocast(cache_enabled=False)).
  bool weight_cache = true;

  // [gemm]: operands of sums of products are rounded to this (TF32), results stay as they are.
  const Format* gemm_operand = nullptr;
  Rounding gemm_operand_rounding = Rounding::kNearestEven;
  std::vector<std::string> gemm_operand_ops;  // forward ops it holds for; empty: all
  // How FP32 factors become TF32 ones, where the policy says so: it then holds on hardware, too,
  // whose tensor cores would ignore the low bits (toward zero).
  std::optional<Rounding> tf32_input;
  const Accumulator* gemm_accumulator;
  const Accumulator* reduce_accumulator;
  const Hardware* hardware = nullptr;  // behind '@' in the lane's name; see hardware_policy.h

  // [dropout]: 1/(1 - p) is rounded to the format of the output before it multiplies.
  bool rounds_dropout_scale = false;

  // [attention]: what fused attention (sdpa's model "flash") rounds inside.
  const FlashKernel* flash_kernel = &flash_kernels().front();

  // [softmax]: log_softmax along the last dimension rounds inside as PyTorch's CPU kernel does.
  bool rounds_log_softmax = false;

  // [recurrent]: whose lstm and gru the lane imitates.
  RecurrentCells recurrent_cells = RecurrentCells::kFused;

  // [scaling]: factors of some ops are rounded to narrow formats after multiplication by a scale.
  FactorScaling scaling;

  // [optimizer]
  bool master_weights = false;  // wider masters beside lower-precision weights
  const Format* master;         // their format
  const Format* optimizer_arithmetic;
  const Format* optimizer_state;
  OptimizerSteps optimizer_steps = OptimizerSteps::kElementary;
  UpdateRounding update_rounding = UpdateRounding::kStorage;

  AllReduce all_reduce;

  LossScaleSpec loss_scale;
  LossScaleUse loss_scale_use;
  std::vector<PolicyRule> rules;

  // Of a parameter whose weight is in `format`: `weight`, or kept in FP32 by keep_fp32, which
  // needs no master and is updated in FP32.
  bool has_master(const Format* format) const;
  const Format* arithmetic_of(const Format* format) const;
  const Format* state_of(const Format* format) const;
  const Format* update_of(const Format* format) const;  // dw before it is added

  CastClass class_of(const std::string& listed_name) const;  // under its autocast

  std::string label() const;  // "torch-autocast-fp16:2.12"; the bare name without a version
  uint64_t hash() const;      // of the text and of what it extends
};

// The lane that every other one is compared with.
inline constexpr std::string_view kReferenceLane = "fp32";
// Lanes that are no policies of their own: FP64 throughout, and FP32 from weights moved by an ulp.
inline constexpr std::string_view kTruthLane = "fp64", kTwinLane = "twin";

}  // namespace lockstep

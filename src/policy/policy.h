// The formats, sums and roundings that a lane uses.
// A policy is a TOML file; a preset is one that is embedded in the program (presets/*.toml,
// versioned). This header holds its content as plain data; docs/policy.md describes the file.
// lower.h applies a policy to a particular graph.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/format/rounding.h"
#include "emulation/format/state_codes.h"
#include "emulation/kernels/args/optimizer_args.h"
#include "emulation/kernels/args/recurrent_rounding.h"
#include "emulation/kernels/flash_kernel.h"
#include "src/graph/cast_class.h"
#include "src/policy/factor_scaling.h"
#include "src/policy/loss_scale.h"
#include "src/policy/place.h"

namespace lockstep {

// The keys of [loss_scale] other than the scaler's own numbers.
struct LossScaleUse {
  bool replay = false;               // repeat an overflowing batch with the next scale
  int64_t replay_limit = 40;         // attempts at one batch, the first included
  bool clip_before_unscale = false;  // a deliberate mistake: clip while still scaled
  bool skip_by_group = false;        // only the groups of parameters that overflowed skip
  // Every loss with its own backward pass has its own scaler; absent: the kind decides.
  std::optional<bool> per_loss;
};

// [reduce] indexed: whose kernels form the sums of ops that add into places that an index names.
// Some of them add 16-bit numbers in 16 bits; docs/policy.md names them.
enum class IndexedSums : uint8_t {
  kDeclared,   // nobody's: in reduce_accumulator
  kTorchCuda,  // PyTorch's on a GPU
  kTorchCpu,   // PyTorch's on a CPU
};

// How the sum of a weight (or its master, if it has one) and its update is rounded.
enum class UpdateRounding : uint8_t {
  kStorage,      // [storage] rounding for formats narrower than FP32, else to nearest even
  kNearestEven,  // these three in every format
  kStochastic,
  kKahan,  // to nearest even, with a compensation per element that keeps the lost part
};

// [all_reduce]: how the gradients of W workers are combined. All roundings are to nearest even.
struct AllReduce {
  enum class Order : uint8_t {
    kRing,       // W chunks; the sum of chunk c runs over the workers c + 1, c + 2, ..., c modulo W
    kTree,       // worker r adds r + 1, then r + 2, r + 4, ...: halves in pairs
    kAllGather,  // every worker gets all gradients, and adds them up from worker 0 on
  };
  enum class Divide : uint8_t {
    kBefore,  // each worker's gradient, by W
    kAfter,   // the sum, by W
    kBoth,    // by about the root of W each: FSDP2's way with FP16
  };
  const Format* format = nullptr;  // of every addend and every sum; null: the gradient's own
  Order order = Order::kRing;
  Divide divide = Divide::kBefore;
  const Format* result = nullptr;  // of the reduced gradient; null: the gradient's own
  std::optional<int64_t> workers;  // W; absent: the run's

  bool operator==(const AllReduce&) const = default;
};

// [[rule]]: an exception for matching places, by globs. Later rules win over earlier ones.
//   place        only in a part of the model that is found by its order, see place.h
//   compute      the matching ops run with operands and output in this format, forward and backward
//                (an autocast-disabled region when it is fp32); matched by layer and op
//   takes_back   compute = "policy": earlier compute rules do not apply to them
//   autocast_off  the matching ops are on no list and follow their operands, as in torch's
//                autocast(enabled=False); matched by layer and op
//   format, rounding     what the value is rounded to at matching sites (layer, op, role, point)
//   accumulator          of matching ops' sums of products
//   loss_scale           a power of two: backward partners of matching forward ops see gradients
//                        multiplied by it; they are multiplied on entry and divided on exit
inline constexpr std::string_view kAsPolicy = "policy";

struct PolicyRule {
  std::string layer = "*", op = "*", role = "*", point = "*";
  std::optional<Place> place;
  const Format* compute = nullptr;
  bool takes_back = false;
  bool autocast_off = false;
  const Format* format = nullptr;
  std::optional<Rounding> rounding;
  const Accumulator* accumulator = nullptr;
  std::optional<double> loss_scale;
  int line = 0;  // in the policy file, for messages

  bool decides_compute() const { return compute != nullptr || takes_back; }
};

inline constexpr int64_t kMostCpuThreads = 4096;  // far above any CPU's

struct Policy {
  std::string name, version, help, source;
  std::vector<std::string> aliases;
  std::vector<std::string> notes;  // for the user, though nothing is wrong
  std::string text;                // the TOML it was read from
  std::string extends;             // label of the preset it starts from, or ""
  uint64_t extends_hash = 0;       // that preset's hash()

  // [storage]: formats of weights and buffers between steps, and of the graph's inputs.
  const Format* weight;
  const Format* buffer;
  const Format* input;
  // Weights, buffers, constants and inputs have the formats that a captured model itself gave them
  // (Graph's `format`), FP32 where it gave none; the three above apply to nothing else.
  bool formats_as_captured = false;
  Rounding rounding = Rounding::kNearestEven;  // of every cast and output, unless a rule differs
  uint32_t stream = 0;                         // stochastic rounding stream number
  // Ops whose nodes keep their parameters and buffers in FP32, if they have any parameter.
  std::vector<std::string> keep_fp32;

  // [model]: the formats to which graph inputs are cast for the model, and the model's values for
  // the loss (OpMeaning::is_loss); null: no cast.
  const Format *model_input = nullptr, *model_output = nullptr;

  // [autocast]: absent (low == nullptr) means that every op follows its operands.
  const Format* low = nullptr;
  std::map<std::string, CastClass> op_class;  // the policy's own lists
  std::optional<CastClass> unlisted;          // class of ops on no list; absent: the op's own row
  // A weight is cast once, and the parts of its gradient are summed in the cast's format; otherwise
  // each is widened first (torch.autocast(cache_enabled=False)).
  bool weight_cache = true;
  // Autocast sees log_softmax and nll_loss, not cross_entropy: log-probabilities and their gradient
  // are rounded to the format of the logits.
  bool splits_cross_entropy = false;

  // [gemm]: operands of sums of products are rounded to this (TF32); results are unchanged.
  const Format* gemm_operand = nullptr;
  Rounding gemm_operand_rounding = Rounding::kNearestEven;
  std::vector<std::string> gemm_operand_ops;  // forward ops it applies to; empty: all
  // How FP32 factors become TF32 ones, if the policy says so. It then also applies on hardware
  // whose tensor cores would ignore the low bits (toward zero).
  std::optional<Rounding> tf32_input;
  const Accumulator* gemm_accumulator;
  const Accumulator* reduce_accumulator;
  // A convolution is rounded before its bias is added; otherwise the bias enters the sum.
  bool rounds_before_conv_bias = false;
  IndexedSums indexed_sums = IndexedSums::kDeclared;
  const Hardware* hardware = nullptr;  // after '@' in the lane's name; see hardware_policy.h

  LibraryRules cuda = {};  // [cuda]: on lanes @cuda

  // [dropout]: 1/(1 - p) is rounded to the format of the output before it multiplies.
  bool rounds_dropout_scale = false;

  // [attention]: the roundings inside fused attention (sdpa's model "flash").
  const FlashKernel* flash_kernel = &flash_kernels().front();

  // [softmax]: log_softmax along the last dimension rounds inside, as PyTorch's CPU kernel does.
  bool rounds_log_softmax = false;

  // [recurrent]: the system whose lstm and gru the lane follows, and the threads it had: on a CPU,
  // layer_norm rounds the gradients of its weights in each thread's part of the rows.
  RecurrentCells recurrent_cells = RecurrentCells::kFused;
  int cpu_threads = 1;

  // [scaling]: factors of some ops are multiplied by a scale and rounded to narrow formats.
  FactorScaling scaling;

  // [optimizer]
  bool master_weights = false;  // wider masters of lower-precision weights
  const Format* master;         // their format
  const Format* optimizer_arithmetic;
  const Format* optimizer_state;
  const StateCodes* state_codes = nullptr;  // of large FP32 states between two steps; null: none
  OptimizerSteps optimizer_steps = OptimizerSteps::kElementary;
  UpdateRounding update_rounding = UpdateRounding::kStorage;

  // [accumulate]: of the sum of a gradient over micro-batches; null: the gradient's own.
  const Format* gradient_sum = nullptr;
  AllReduce all_reduce;

  LossScaleSpec loss_scale;
  LossScaleUse loss_scale_use;
  std::vector<PolicyRule> rules;
  // The graph is a part of the model that the policy is for: what it asks for may not be there.
  bool is_of_larger_model = false;

  // These take the format of a parameter's weight: `weight`, or FP32 by keep_fp32. An FP32 weight
  // needs no master and is updated in FP32.
  bool has_master(const Format* format) const;
  const Format* arithmetic_of(const Format* format) const;
  const Format* state_of(const Format* format) const;
  // The codes of a state of `count` numbers; null: it is kept as state_of says.
  const StateCodes* codes_of(const Format* format, int64_t count) const;
  const Format* update_of(const Format* format) const;  // dw before it is added

  CastClass class_of(const std::string& listed_name) const;  // under its autocast

  std::string label() const;  // "torch-autocast-fp16:2.12"; the bare name without a version
  uint64_t hash() const;      // of the text and of the preset it extends
};

// The lane that every other one is compared with.
inline constexpr std::string_view kReferenceLane = "fp32";
// Lanes without a policy of their own: FP64 throughout, and FP32 from weights moved by an ulp.
inline constexpr std::string_view kTruthLane = "fp64", kTwinLane = "twin";

}  // namespace lockstep

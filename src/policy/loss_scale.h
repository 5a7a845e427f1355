// How a loss scale changes.
// A scaler is a pure state machine, (state, found_inf) -> state. Each kind has one row with the
// numbers it takes and the defaults of the system it follows. Knows nothing of tensors or of the
// source of found_inf.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep {

// The scaler of captured loops: torch.amp.GradScaler.
inline constexpr std::string_view kGradScaler = "torch-dynamic";

// The numbers of [loss_scale]. Each kind reads those that its row lists; their help explains them.
struct LossScaleSpec {
  std::string kind = "none";
  double init_scale = 1;
  double growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double min_scale = 0, max_scale = std::numeric_limits<double>::infinity();
  int64_t hysteresis = 1;
  bool consecutive_hysteresis = false, raise_at_min = false;
  double tolerance = 0, threshold = 0;
};

// A number that a policy may set.
struct LossScaleKey {
  std::string_view name, help;
  std::variant<double LossScaleSpec::*, int64_t LossScaleSpec::*, bool LossScaleSpec::*> member;
  // The range of a double: least to most, each included only if allowed.
  double least = 0, most = 0;
  bool least_allowed = false, most_allowed = false;
};

std::span<const LossScaleKey> loss_scale_keys();

// Everything that any kind keeps between steps. Unused numbers keep their initial value.
struct LossScaleState {
  double scale = 1;            // of the next step; an FP32 value where the system holds FP32
  double next_scale = 1;       // the one after it, for systems that lag a step
  int64_t growth_tracker = 0;  // clean steps since the last overflow or growth
  int64_t hysteresis = 0;      // overflows left before the scale shrinks
  int64_t iteration = 0, last_overflow = -1, last_rescale = -1;  // steps, from 0
  int64_t overflows_since_rescale = 0;
  bool raised = false;  // the system stops training at this step
  bool operator==(const LossScaleState&) const = default;
};

// Every number of a state by name, for storage; each is exact in a double.
struct LossScaleField {
  std::string_view name;
  double (*get)(const LossScaleState&);
  void (*set)(LossScaleState&, double);
};
std::span<const LossScaleField> loss_scale_fields();

struct LossScaler {
  enum class Check : uint8_t {
    kNone,      // gradients are not checked, no step is skipped
    kScaled,    // gradients are checked as they arrive
    kUnscaled,  // gradients are checked after unscaling
  };
  enum class Unscale : uint8_t {
    kMultiply,  // by the reciprocal, formed in double and rounded to FP32
    kDivide,    // by the scale, in FP32
  };
  std::string_view name, help, source;
  Check check;
  Unscale unscale;
  LossScaleSpec defaults;
  std::vector<std::string_view> keys;  // the numbers it reads, of loss_scale_keys()
  LossScaleState (*initial)(const LossScaleSpec&);
  // The state after a step whose gradients had (or had not) a non-finite value.
  LossScaleState (*update)(const LossScaleSpec&, LossScaleState, bool found_inf);
  // If every loss has its own backward pass: the system keeps a scaler for each.
  bool per_loss = false;
  bool scales = true;  // false: the scale is always 1

  bool knows(std::string_view key) const;
};

std::span<const LossScaler> loss_scalers();
const LossScaler& find_loss_scaler(std::string_view name);  // Throws: InputError, did-you-mean

std::string_view to_string(LossScaler::Check check);  // "scaled gradients"
// "init_scale=65536, growth_factor=2, ...": the numbers of a row and their defaults, for lists.
std::string default_numbers_text(const LossScaler& scaler);

}  // namespace lockstep

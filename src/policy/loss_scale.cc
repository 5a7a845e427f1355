// The table of loss scalers. Each row gives its system's result bit for bit: PyTorch, Megatron,
// Keras and Flax hold the scale in FP32, the others in double.
#include "src/policy/loss_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/core/find_row.h"

namespace lockstep {
namespace {

using Spec = LossScaleSpec;
using State = LossScaleState;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMaxFp32 = std::numeric_limits<float>::max();
constexpr double kMinNormalFp32 = std::numeric_limits<float>::min();
// The first power of two beyond FP32. The scale multiplies the loss, which is FP32.
constexpr double kAboveFp32 = 2 * 0x1p127;

// Rounded to FP32, for systems that hold the scale in it.
double fp32(double x) {
  return static_cast<float>(x);
}

State start(const Spec& spec) {
  State state;
  state.scale = state.next_scale = std::min(spec.init_scale, spec.max_scale);
  state.hysteresis = spec.hysteresis;
  return state;
}
State start_in_fp32(const Spec& spec) {
  State state = start(spec);
  state.scale = state.next_scale = fp32(state.scale);
  return state;
}
State start_constant(const Spec& spec) {
  State state;
  state.scale = state.next_scale = fp32(spec.init_scale);
  return state;
}
State start_at_one(const Spec&) {
  return {};
}
State stay(const Spec&, State state, bool) {
  return state;
}

// Products with the factors are formed in double and rounded once. The scale never grows to
// infinity, but the tracker restarts then, too.
State update_torch(const Spec& spec, State state, bool found_inf) {
  if (found_inf) {
    state.scale = std::max(fp32(state.scale * spec.backoff_factor), fp32(spec.min_scale));
    state.growth_tracker = 0;
  } else if (++state.growth_tracker == spec.growth_interval) {
    const double grown = fp32(state.scale * spec.growth_factor);
    if (std::isfinite(grown)) state.scale = std::min(grown, fp32(spec.max_scale));
    state.growth_tracker = 0;
  }
  return state;
}

State update_apex(const Spec& spec, State state, bool found_inf) {
  if (found_inf) {
    state.scale = std::max(spec.min_scale, state.scale / spec.growth_factor);
    state.growth_tracker = 0;
  } else if (++state.growth_tracker == spec.growth_interval) {
    state.scale = std::min(spec.max_scale, state.scale * spec.growth_factor);
    state.growth_tracker = 0;
  }
  return state;
}

// The window is a remainder of the steps since the last overflow. One is assumed just before the
// first step.
State update_fp16_utils(const Spec& spec, State state, bool found_inf) {
  if (found_inf) {
    state.scale = std::max(state.scale / spec.growth_factor, spec.min_scale);
    state.last_overflow = state.iteration;
    state.growth_tracker = 0;
  } else {
    ++state.growth_tracker;
    if ((state.iteration - state.last_overflow) % spec.growth_interval == 0) {
      state.scale = std::min(state.scale * spec.growth_factor, spec.max_scale);
      state.growth_tracker = 0;
    }
  }
  ++state.iteration;
  return state;
}

// Grows on the clean step after the window: `stable` counts the clean steps between two overflows.
State update_deepspeed(const Spec& spec, State state, bool found_inf) {
  if (found_inf) {
    if (spec.hysteresis > 1 && state.hysteresis > 1) {
      --state.hysteresis;
    } else if (spec.raise_at_min && state.scale == spec.min_scale) {
      state.raised = true;
      return state;
    } else {
      state.scale = std::max(state.scale / spec.growth_factor, spec.min_scale);
    }
    state.last_overflow = state.iteration;
    state.growth_tracker = 0;
  } else {
    ++state.growth_tracker;
    const int64_t stable = state.iteration - state.last_overflow - 1;
    const bool grows = stable > 0 && stable % spec.growth_interval == 0;
    if (grows || spec.consecutive_hysteresis) state.hysteresis = spec.hysteresis;
    if (grows) {
      state.scale = std::min(state.scale * spec.growth_factor, spec.max_scale);
      state.growth_tracker = 0;
    }
  }
  ++state.iteration;
  return state;
}

// Factors and minimum are also FP32. Every overflow uses up hysteresis, consecutive or not; only a
// growth refills it.
State update_megatron(const Spec& spec, State state, bool found_inf) {
  if (found_inf) {
    state.growth_tracker = 0;
    if (--state.hysteresis <= 0) {
      state.scale = std::max(fp32(state.scale * fp32(spec.backoff_factor)), fp32(spec.min_scale));
    }
  } else if (++state.growth_tracker == spec.growth_interval) {
    state.growth_tracker = 0;
    state.hysteresis = spec.hysteresis;
    state.scale = std::min(fp32(state.scale * fp32(spec.growth_factor)), fp32(spec.max_scale));
  }
  return state;
}

// Uses the scale decided a step ago and decides the next one.
State update_mxnet(const Spec& spec, State state, bool found_inf) {
  state.scale = state.next_scale;
  if (found_inf) {
    state.next_scale = std::max(spec.min_scale, state.scale / spec.growth_factor);
    state.growth_tracker = 0;
  } else {
    ++state.growth_tracker;
  }
  if (state.growth_tracker == spec.growth_interval) {
    state.next_scale = std::min(spec.max_scale, state.scale * spec.growth_factor);
    state.growth_tracker = 0;
  }
  return state;
}

State update_keras(const Spec& spec, State state, bool found_inf) {
  if (found_inf) {
    state.scale = std::max(fp32(state.scale / 2), fp32(spec.min_scale));
    state.growth_tracker = 0;
  } else if (++state.growth_tracker == spec.growth_interval) {
    state.scale = std::min(fp32(state.scale * 2), fp32(spec.max_scale));
    state.growth_tracker = 0;
  }
  return state;
}

// The tracker is compared before it counts: the scale grows with the step after the interval.
State update_flax(const Spec& spec, State state, bool found_inf) {
  if (found_inf) {
    state.scale = std::max(fp32(state.scale * fp32(spec.backoff_factor)), fp32(spec.min_scale));
    state.growth_tracker = 0;
  } else if (state.growth_tracker == spec.growth_interval) {
    state.scale = std::min(fp32(state.scale * fp32(spec.growth_factor)), fp32(spec.max_scale));
    state.growth_tracker = 0;
  } else {
    ++state.growth_tracker;
  }
  return state;
}

// The scale shrinks only if at least `tolerance` of the steps since its last change overflowed.
// Stopping leaves the scale unchanged.
State update_fairseq(const Spec& spec, State state, bool found_inf) {
  if (found_inf) {
    const double before = state.scale;
    const double steps = static_cast<double>(state.iteration - state.last_rescale);
    state.last_overflow = state.iteration;
    state.growth_tracker = 0;
    ++state.overflows_since_rescale;
    if (static_cast<double>(state.overflows_since_rescale) / steps >= spec.tolerance) {
      state.scale = std::max(state.scale / spec.growth_factor, spec.threshold);
      state.last_rescale = state.iteration;
      state.overflows_since_rescale = 0;
    }
    if (state.scale <= spec.min_scale) {
      state.scale = before;
      state.raised = true;
      return state;
    }
  } else {
    ++state.growth_tracker;
    if ((state.iteration - state.last_overflow) % spec.growth_interval == 0) {
      state.scale = std::min(state.scale * spec.growth_factor, spec.max_scale);
      state.last_rescale = state.iteration;
      state.growth_tracker = 0;
    }
  }
  ++state.iteration;
  return state;
}

const LossScaleKey kKeys[] = {
    {.name = "init_scale",
     .help = "the first scale",
     .member = &Spec::init_scale,
     .most = kAboveFp32},
    {.name = "growth_factor",
     .help = "multiplies the scale",
     .member = &Spec::growth_factor,
     .least = 1,
     .most = kAboveFp32},
    {.name = "backoff_factor",
     .help = "multiplies it after an overflow",
     .member = &Spec::backoff_factor,
     .most = 1},
    {.name = "growth_interval",
     .help = "clean steps before the scale grows",
     .member = &Spec::growth_interval},
    {.name = "min_scale",
     .help = "smallest scale; 0: no floor",
     .member = &Spec::min_scale,
     .most = kAboveFp32,
     .least_allowed = true},
    {.name = "max_scale",
     .help = "largest scale, also at the start; inf: no cap",
     .member = &Spec::max_scale,
     .most = kInfinity,
     .most_allowed = true},
    {.name = "hysteresis",
     .help = "overflows before the scale shrinks",
     .member = &Spec::hysteresis},
    {.name = "consecutive_hysteresis",
     .help = "any clean step refills the hysteresis; false: only growth",
     .member = &Spec::consecutive_hysteresis},
    {.name = "raise_at_min",
     .help = "an overflow at min_scale stops training",
     .member = &Spec::raise_at_min},
    {.name = "tolerance",
     .help = "share of overflowing steps that is tolerated",
     .member = &Spec::tolerance,
     .most = 1,
     .least_allowed = true,
     .most_allowed = true},
    {.name = "threshold",
     .help = "floor below which the scale is not divided; 0: none",
     .member = &Spec::threshold,
     .most = kAboveFp32,
     .least_allowed = true},
};

constexpr double kTwoTo15 = 0x1p15, kTwoTo16 = 0x1p16, kTwoTo24 = 0x1p24, kTwoTo32 = 0x1p32;
constexpr double kFairseqMinimum = 1e-4;

Spec spec_of(std::string_view kind, double init_scale, int64_t interval = 2000) {
  Spec spec;
  spec.kind = kind;
  spec.init_scale = init_scale;
  spec.growth_interval = interval;
  return spec;
}
Spec bounded(Spec spec, double least, double most = kInfinity) {
  spec.min_scale = least;
  spec.max_scale = most;
  return spec;
}
Spec with_hysteresis(Spec spec, int64_t hysteresis, bool raises) {
  spec.hysteresis = hysteresis;
  spec.raise_at_min = raises;
  return spec;
}

using Check = LossScaler::Check;
using Unscale = LossScaler::Unscale;

std::vector<LossScaler> make_scalers() {
  return {
      {"none",
       "scale 1; gradients are not checked and no step is ever skipped",
       "plain training without a GradScaler",
       Check::kNone,
       Unscale::kMultiply,
       spec_of("none", 1),
       {},
       start_at_one,
       stay,
       /*per_loss=*/false,
       /*scales=*/false},
      {"static",
       "constant scale init_scale; a step with a non-finite gradient is skipped, as by a "
       "GradScaler with growth and backoff factor 1",
       "Micikevicius et al. 2018, §3.2 (constant factor); the skip: torch GradScaler.step",
       Check::kScaled,
       Unscale::kMultiply,
       spec_of("static", 1),
       {"init_scale"},
       start_constant,
       stay},
      {"static-unchecked",
       "constant scale init_scale; gradients are not checked, so an overflow reaches the weights",
       "apex/amp/scaler.py, LossScaler.update_scale: a step is skipped only where the scale is "
       "dynamic",
       Check::kNone,
       Unscale::kMultiply,
       spec_of("static-unchecked", 1),
       {"init_scale"},
       start_constant,
       stay},
      {"torch-dynamic",
       "an overflow multiplies the scale by backoff_factor; growth_interval steps without one "
       "multiply it by growth_factor, unless to infinity; no minimum",
       "torch/amp/grad_scaler.py, GradScaler.update",
       Check::kScaled,
       Unscale::kMultiply,
       spec_of("torch-dynamic", kTwoTo16),
       {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale",
        "max_scale"},
       start_in_fp32,
       update_torch},
      {"apex",
       "an overflow divides the scale by growth_factor; growth_interval clean steps multiply it; "
       "capped, no minimum; one scaler per loss with its own backward pass",
       "apex/amp/scaler.py, LossScaler; apex/amp/handle.py, scale_loss: one by loss_id",
       Check::kScaled,
       Unscale::kMultiply,
       bounded(spec_of("apex", kTwoTo16), 0, kTwoTo24),
       {"init_scale", "growth_factor", "growth_interval", "min_scale", "max_scale"},
       start,
       update_apex,
       /*per_loss=*/true},
      {"apex-fp16-utils",
       "an overflow divides the scale by growth_factor; it grows when the steps since the last "
       "overflow are a multiple of growth_interval",
       "apex/fp16_utils/loss_scaler.py, DynamicLossScaler",
       Check::kScaled,
       Unscale::kMultiply,
       bounded(spec_of("apex-fp16-utils", kTwoTo32, 1000), 1),
       {"init_scale", "growth_factor", "growth_interval", "min_scale", "max_scale"},
       start,
       update_fp16_utils},
      {"deepspeed",
       "the first hysteresis - 1 overflows only skip, later ones divide the scale; one at the "
       "minimum stops training; growth_interval + 1 clean steps multiply it",
       "deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler, JSON defaults",
       Check::kScaled,
       Unscale::kMultiply,
       with_hysteresis(bounded(spec_of("deepspeed", kTwoTo16, 1000), 1), 2, true),
       {"init_scale", "growth_factor", "growth_interval", "min_scale", "max_scale", "hysteresis",
        "consecutive_hysteresis", "raise_at_min"},
       start,
       update_deepspeed},
      {"megatron",
       "an overflow multiplies the scale by backoff_factor after `hysteresis` overflows since "
       "the last growth; growth_interval clean steps multiply it by growth_factor",
       "megatron/core/optimizer/grad_scaler.py, DynamicGradScaler",
       Check::kScaled,
       Unscale::kMultiply,
       with_hysteresis(bounded(spec_of("megatron", kTwoTo32, 1000), 1), 2, false),
       {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale",
        "max_scale", "hysteresis"},
       start_in_fp32,
       update_megatron},
      {"mxnet",
       "as apex, but each change takes effect one step late: the step after an overflow still uses "
       "the scale that overflowed",
       "mxnet/contrib/amp/loss_scaler.py, LossScaler",
       Check::kScaled,
       Unscale::kMultiply,
       bounded(spec_of("mxnet", kTwoTo16), 0, kTwoTo24),
       {"init_scale", "growth_factor", "growth_interval", "min_scale", "max_scale"},
       start,
       update_mxnet},
      {"keras",
       "an overflow halves the scale, growth_interval clean steps double it; gradients are divided "
       "by it",
       "keras/src/optimizers/loss_scale_optimizer.py, LossScaleOptimizer",
       Check::kScaled,
       Unscale::kDivide,
       spec_of("keras", kTwoTo15),
       {"init_scale", "growth_interval", "min_scale", "max_scale"},
       start_in_fp32,
       update_keras},
      {"flax",
       "unscaled gradients are checked; an overflow multiplies the scale by backoff_factor; "
       "growth_interval + 1 clean steps multiply it by growth_factor; gradients are divided by it",
       "flax/training/dynamic_scale.py, DynamicScale",
       Check::kUnscaled,
       Unscale::kDivide,
       bounded(spec_of("flax", kTwoTo16), kMinNormalFp32, kMaxFp32),
       {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale",
        "max_scale"},
       start_in_fp32,
       update_flax},
      {"fairseq",
       "an overflow divides the scale if at least `tolerance` of the steps since its last change "
       "overflowed; a scale not above min_scale stops training",
       "fairseq/optim/dynamic_loss_scaler.py, DynamicLossScaler",
       Check::kScaled,
       Unscale::kMultiply,
       bounded(spec_of("fairseq", kTwoTo15), kFairseqMinimum),
       {"init_scale", "growth_factor", "growth_interval", "min_scale", "max_scale", "tolerance",
        "threshold"},
       start,
       update_fairseq},
  };
}

const std::vector<LossScaler>& scalers() {
  static const std::vector<LossScaler> all = make_scalers();
  return all;
}

template <auto kMember>
constexpr LossScaleField field(std::string_view name) {
  return {name, [](const State& state) { return static_cast<double>(state.*kMember); },
          [](State& state, double value) {
            state.*kMember = static_cast<std::remove_reference_t<decltype(state.*kMember)>>(value);
          }};
}

constexpr LossScaleField kFields[] = {
    field<&State::scale>("scale"),
    field<&State::next_scale>("next_scale"),
    field<&State::growth_tracker>("growth_tracker"),
    field<&State::hysteresis>("hysteresis"),
    field<&State::iteration>("iteration"),
    field<&State::last_overflow>("last_overflow"),
    field<&State::last_rescale>("last_rescale"),
    field<&State::overflows_since_rescale>("overflows_since_rescale"),
    field<&State::raised>("raised"),
};

}  // namespace

bool LossScaler::knows(std::string_view key) const {
  return std::ranges::count(keys, key) > 0;
}

std::span<const LossScaler> loss_scalers() {
  return scalers();
}
std::span<const LossScaleKey> loss_scale_keys() {
  return kKeys;
}
std::span<const LossScaleField> loss_scale_fields() {
  return kFields;
}

const LossScaler& find_loss_scaler(std::string_view name) {
  return find_row("loss scaler", name, scalers());
}

std::string_view to_string(LossScaler::Check check) {
  switch (check) {
    case Check::kNone:
      return "nothing";
    case Check::kScaled:
      return "scaled gradients";
    case Check::kUnscaled:
      return "unscaled gradients";
  }
  return "";
}

std::string default_numbers_text(const LossScaler& scaler) {
  std::string text;
  for (const LossScaleKey& key : kKeys) {
    if (!scaler.knows(key.name)) continue;
    std::visit(
        [&](auto member) {
          text +=
              fmt::format("{}{}={}", text.empty() ? "" : ", ", key.name, scaler.defaults.*member);
        },
        key.member);
  }
  return text;
}

}  // namespace lockstep

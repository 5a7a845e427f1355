// The rows, the gravest kind first.
#include "analysis/findings/finding_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "analysis/findings/equal_weights.h"
#include "analysis/findings/lost_shares.h"
#include "analysis/findings/nonfinite.h"
#include "analysis/findings/remedies.h"
#include "analysis/findings/swamped_sums.h"
#include "src/core/text.h"
#include "src/graph/op_text.h"

namespace lockstep {
namespace {

// A loss scale, "2^24"; other numbers as two_digits.
std::string power_text(double scale) {
  constexpr int kWritten = 10;  // powers up to 2^10 are read more easily as numbers
  const bool is_power = std::isfinite(scale) && scale > 0 && std::exp2(std::ilogb(scale)) == scale;
  const bool is_plain = scale >= 1 && std::ilogb(scale) <= kWritten;
  return is_power && !is_plain ? fmt::format("2^{}", std::ilogb(scale)) : two_digits(scale);
}

std::string scale_note(const FindingContext& c) {
  if (!c.has_scaler || !c.finding.backward || c.finding.scale == 1) return "";
  return fmt::format(" at loss scale {}", power_text(c.finding.scale));
}

std::string format_of(const FindingContext& c) {
  return c.finding.format.empty() ? "the format" : c.finding.format;
}

// "its input", "its gradient", "its result": what the site is to the op.
std::string what_of(const Site& site) {
  const bool operand = site.point == Point::kOperand;
  switch (site.role) {
    case Role::kGradActivation:
    case Role::kGradWeight:
      return operand ? "the gradient that comes in" : "its gradient";
    case Role::kWeight:
      return "the weight";
    case Role::kInput:
      return "the input";
    case Role::kBuffer:
      return "the buffer";
    case Role::kLoss:
      return "the loss";
    case Role::kUpdate:
      return "the update";
    case Role::kOptimizerState:
      return "the optimizer state";
    case Role::kMasterWeight:
      return "the master weight";
    default:
      return operand ? "its input" : "its result";
  }
}

// Names a site elsewhere: "the result of block add (model.py:36)".
std::string what_elsewhere(const Site& site) {
  if (is_storage(site)) return place_text(site);
  if (!is_in_graph(site)) return what_of(site);
  const bool operand = site.point == Point::kOperand;
  const char* what = is_backward(site) ? (operand ? "the gradient into " : "the gradient of ")
                                       : (operand ? "the input of " : "the result of ");
  return what + place_text(site);
}

// "exp_avg_sq", the optimizer's name of its state.
std::string state_of(const FindingContext& c) {
  return c.finding.text.empty() ? what_of(c.site()) : c.finding.text;
}

// ", fp16 ends at 65504"; nothing where the format was not recorded.
std::string limit_text(const FindingContext& c) {
  if (!std::isfinite(c.finding.limit)) return "";
  return fmt::format(", {} ends at {}", format_of(c), two_digits(c.finding.limit));
}

std::string overflow_sentence(const FindingContext& c) {
  if (!std::isfinite(c.finding.value) || c.finding.value <= c.finding.limit) {
    return fmt::format("{}: {} becomes infinite in {}", place_text(c.site()), what_of(c.site()),
                       format_of(c));
  }
  return fmt::format("{}: {} reaches {}{}{}", place_text(c.site()), what_of(c.site()),
                     two_digits(c.finding.value), scale_note(c), limit_text(c));
}
std::string overflow_follows(const FindingContext& c) {
  if (c.finding.spoilt_buffer >= 0) {
    return fmt::format("Running statistics of {} are not finite from then on: evaluation is broken",
                       c.sites.sites[static_cast<size_t>(c.finding.spoilt_buffer)].layer);
  }
  if (!c.has_scaler || c.finding.site < 0 || (!is_in_graph(c.site()) && !is_storage(c.site())))
    return "";
  if (!c.finding.backward) return "Loss scaling cannot help: it is the forward pass";
  return c.finding.kind == FindingKind::kInvalid ? "Loss scaling cannot help" : "";
}
std::string storage_overflow_sentence(const FindingContext& c) {
  return fmt::format("{} reaches {} and becomes infinite when stored{}", place_text(c.site()),
                     two_digits(c.finding.value), limit_text(c));
}
std::string storage_underflow_sentence(const FindingContext& c) {
  if (c.finding.share >= 1) {
    return fmt::format("{} becomes zero when stored in {}", place_text(c.site()), format_of(c));
  }
  return fmt::format("{} loses {} of its energy to underflow when stored in {}",
                     place_text(c.site()), share_text(c.finding.share), format_of(c));
}
std::string clip_overflow_sentence(const FindingContext& c) {
  return fmt::format(
      "the norm by which gradients are clipped, {}{}, overflows in {}, which ends at {}: the "
      "factor is 0 and every gradient becomes zero in {} of {} steps",
      two_digits(c.finding.value), scale_note(c), format_of(c), two_digits(c.finding.limit),
      c.finding.steps, c.steps);
}
std::string sum_overflow_sentence(const FindingContext& c) {
  const double value = c.finding.value;
  if (c.finding.site < 0) return clip_overflow_sentence(c);
  if (!c.finding.text.empty()) {  // "4 micro-batches"
    return fmt::format("{}: the gradients of {} add up beyond {}'s {}{}; each reaches {}",
                       place_text(c.site()), c.finding.text, format_of(c),
                       two_digits(c.finding.limit), scale_note(c), two_digits(value));
  }
  if (value > c.finding.limit) {
    return fmt::format("{}: the sum reaches {}{}{}", place_text(c.site()), two_digits(value),
                       scale_note(c), limit_text(c));
  }
  const std::string limit =
      std::isfinite(c.finding.limit)
          ? fmt::format(" beyond {}'s {}", format_of(c), two_digits(c.finding.limit))
          : "";
  const std::string result =
      std::isfinite(value) ? fmt::format(", though the result is only {}", two_digits(value)) : "";
  return fmt::format("{}: a sum grows{}{}{}", place_text(c.site()),
                     limit.empty() ? " too large" : limit, scale_note(c), result);
}
std::string invalid_sentence(const FindingContext& c) {
  std::string text = fmt::format("{}: {} becomes {}", place_text(c.site()), what_of(c.site()),
                                 c.finding.text.empty() ? "NaN or infinite" : c.finding.text);
  if (c.finding.cause >= 0) {
    const Site& cause = c.sites.sites[static_cast<size_t>(c.finding.cause)];
    text +=
        fmt::format(" because {} {} {}{}", what_elsewhere(cause), c.of_reference ? "is" : "became",
                    !c.finding.outside.empty() ? std::string(c.finding.outside)
                    : c.finding.pole == 0      ? "zero"
                                               : two_digits(c.finding.pole),
                    is_storage(cause) ? " when stored" : "");
  }
  if (c.finding.rounded >= 0) {
    text += " by rounding " + what_elsewhere(c.sites.sites[static_cast<size_t>(c.finding.rounded)]);
  }
  return text;
}
std::string state_overflow_sentence(const FindingContext& c) {
  if (!std::isfinite(c.finding.value) || c.finding.value <= c.finding.limit) {
    return fmt::format("{}: {} becomes infinite in {}", place_text(c.site()), state_of(c),
                       format_of(c));
  }
  return fmt::format("{}: {} reaches {}{}", place_text(c.site()), state_of(c),
                     two_digits(c.finding.value), limit_text(c));
}
std::string scaled_clip_sentence(const FindingContext& c) {
  const Finding& f = c.finding;
  return fmt::format(
      "gradients are clipped to {} while still scaled: their norm {} holds the loss scale {}, so "
      "updates are {} times too short",
      two_digits(f.limit), two_digits(f.value), power_text(f.scale),
      two_digits(std::min(f.scale, f.value / f.limit)));
}
std::string state_sentence(const FindingContext& c) {
  return fmt::format("{}: {} of {} became zero in {}", place_text(c.site()),
                     share_text(c.finding.share), state_of(c), format_of(c));
}
// ", and 2 more layers get none"
std::string more_layers(const FindingContext& c) {
  const size_t layers = c.finding.consequences.size();
  if (layers == 0) return "";
  return fmt::format(", and {} more layer{} none", layers, layers == 1 ? " gets" : "s get");
}
// ", so the weight gradient made from it is wrong by 35%".
std::string weights_note(const FindingContext& c) {
  if (c.finding.spoilt < 0) return "";
  return fmt::format(", so the weight gradient made from it is wrong by {}",
                     share_text(c.finding.spoilt_error));
}
// "3 of 200 steps", "3 of 20 measured steps"
std::string steps_text(const FindingContext& c) {
  return fmt::format("{} of {} {}steps", c.finding.steps, c.steps, c.all_steps ? "" : "measured ");
}
std::string no_scaler_sentence(const FindingContext& c) {
  const Finding& f = c.finding;
  std::string how =
      fmt::format("{} loses {} of its energy", what_of(c.site()), share_text(f.share));
  if (f.share >= 1) {
    how = "the whole gradient became zero in " + steps_text(c);
  }
  return fmt::format(
      "no loss scale although gradients vanish: {}: {}, largest {}, {}'s smallest {}{}",
      place_text(c.site()), how + weights_note(c), two_digits(f.value), format_of(c),
      two_digits(f.limit), f.share >= 1 ? more_layers(c) : "");
}
std::string no_gradient_sentence(const FindingContext& c) {
  if (c.finding.cause >= 0) {
    return fmt::format("{}: no gradient passes in {}: rounded to {}, {} has no slope",
                       place_text(c.site()), steps_text(c), format_of(c),
                       what_elsewhere(c.sites.sites[static_cast<size_t>(c.finding.cause)]));
  }
  return fmt::format("{}: the whole gradient became zero in {} in {}{}{}", place_text(c.site()),
                     format_of(c), steps_text(c), scale_note(c), more_layers(c));
}
std::string underflow_sentence(const FindingContext& c) {
  const std::string outlier =
      c.finding.outlier_step < 0
          ? ""
          : fmt::format(", after the large batch of step {} lowered its scale",
                        c.finding.outlier_step);
  return fmt::format("{}: {} loses {} of its energy to underflow in {}{}{}{}", place_text(c.site()),
                     what_of(c.site()), share_text(c.finding.share), format_of(c), scale_note(c),
                     weights_note(c), outlier);
}

std::string collapse_sentence(const FindingContext& c) {
  const bool is_static = c.finding.scale == c.finding.value;
  std::string text =
      is_static ? fmt::format("{} of {} steps were skipped at the loss scale {}",
                              c.finding.skipped_steps, c.finding.steps, power_text(c.finding.scale))
                : fmt::format("{} of {} steps were skipped and the loss scale fell from {} to {}",
                              c.finding.skipped_steps, c.finding.steps, power_text(c.finding.scale),
                              power_text(c.finding.value));
  if (c.finding.site >= 0) text += ", mostly because of " + place_text(c.site());
  return text;
}
std::string floor_sentence(const FindingContext& c) {
  return "the loss scaler gave up: " + collapse_sentence(c);
}

std::string saturated_sentence(const FindingContext& c) {
  return fmt::format("{}: {} reaches {}{}; cutting it off costs {} of its energy",
                     place_text(c.site()), what_of(c.site()), two_digits(c.finding.value),
                     limit_text(c), share_text(c.finding.share));
}
std::string updates_sentence(const FindingContext& c) {
  if (c.finding.is_tail) {
    return fmt::format(
        "{}: from step {} on, updates come to nothing: {} of their energy is below half an ulp of "
        "the {} weights; fp32's move the weights",
        place_text(c.site()), c.finding.first_step, share_text(c.finding.share), format_of(c));
  }
  return fmt::format("{}: {} of the update energy is lost, {} weights are too coarse to take it",
                     place_text(c.site()), share_text(c.finding.share), format_of(c));
}
// "running_var".
std::string buffer_of(const FindingContext& c) {
  return c.finding.text.empty() ? "the buffer" : c.finding.text;
}

std::string swamping_sentence(const FindingContext& c) {
  if (c.finding.cause >= 0) {  // a plain sum
    const Site& lost = c.sites.sites[static_cast<size_t>(c.finding.cause)];
    return fmt::format("{}: the sum is {} times operand {} and loses {} of its energy in {}",
                       place_text(c.site()), two_digits(c.finding.value), lost.index,
                       share_text(c.finding.share), format_of(c));
  }
  if (c.finding.is_other_sum) {
    return fmt::format(
        "{}: sums in {} are wrong by {}: terms below half an ulp of the sum are lost",
        place_text(c.site()), format_of(c), share_text(c.finding.value));
  }
  if (c.site().point != Point::kAccumulator && !c.finding.backward) {
    return fmt::format("{}: {} of the energy that the steps add to {} is lost in {}",
                       place_text(c.site()), share_text(c.finding.share), buffer_of(c),
                       format_of(c));
  }
  if (c.site().point != Point::kAccumulator) {
    return fmt::format("{}: adding up the micro-batches' gradients loses {} of their energy in {}",
                       place_text(c.site()), share_text(c.finding.share), format_of(c));
  }
  return fmt::format("{}: {} of the terms are swamped, the sums are wrong by {}",
                     place_text(c.site()), share_text(c.finding.share),
                     share_text(c.finding.value));
}

std::string constant_sentence(const FindingContext& c) {
  return c.finding.text;
}
std::string drift_sentence(const FindingContext& c) {
  const bool is_range = c.finding.text == "range";
  return fmt::format(
      "no single fault; {} at {} {} the loss by {}, more than at any other site (an estimate to "
      "first order; {} of the sum over all sites)",
      is_range ? fmt::format("values out of {}'s range", format_of(c))
               : fmt::format("rounding to {}", format_of(c)),
      place_text(c.site()), is_range ? "change" : "changes", two_digits(c.finding.value),
      share_text(c.finding.share));
}
// "loss 0.17, fp32 0.0055" of a step begun with the same weights.
std::string equal_weights_note(const FindingContext& c) {
  const Finding& f = c.finding;
  if (std::isfinite(f.value)) {
    const char* gradients = f.spoilt_error < kWrongResult ? ", though its gradients are right" : "";
    return fmt::format("loss {:.3g}, fp32 {:.3g}{}", f.value, f.limit, gradients);
  }
  return "weight gradients wrong by " + share_text(f.spoilt_error);
}
// "61%", "183 times its size"
std::string error_text(double share) {
  return share < 1 ? share_text(share) : two_digits(share) + " times its size";
}
std::string cancellation_sentence(const FindingContext& c) {
  const Finding& f = c.finding;
  const std::string rounding =
      fmt::format("rounding {} to {}",
                  what_elsewhere(c.sites.sites[static_cast<size_t>(f.rounded)]), format_of(c));
  if (f.text == "cancellation") {
    return fmt::format(
        "{}: cancellation, {} times smaller than its operands, wrong by {} through {}; {}",
        place_text(c.site()), two_digits(f.factor), error_text(f.share), rounding,
        equal_weights_note(c));
  }
  return fmt::format("{} amplifies the error of {} {} times and is wrong by {}; {}",
                     place_text(c.site()), rounding, two_digits(f.factor), error_text(f.share),
                     equal_weights_note(c));
}
std::string wrong_loss_sentence(const FindingContext& c) {
  std::string text = equal_weights_note(c);
  if (c.finding.site < 0) return text + "; no single rounding explains it";
  return text + fmt::format("; rounding {} to {} explains {} of the difference, to first order",
                            what_elsewhere(c.site()), format_of(c), share_text(c.finding.share));
}
// The op is PyTorch's: "router topk (moe.py:41)".
std::string flipped_sentence(const FindingContext& c) {
  const Finding& f = c.finding;
  const std::string call = torch_name(c.site());  // "aten.topk"
  const std::string op = call.empty() ? c.site().op : call.substr(call.find('.') + 1);
  const std::string& line = c.site().source_line;
  const bool is_outside = op_text(c.site().layer, c.site().op) == c.site().op;
  const std::string place =
      (is_outside ? "" : c.site().layer + " ") + op + (line.empty() ? "" : " (" + line + ")");
  if (f.events == 0) {
    return fmt::format("{} chooses between equal values in {} of {} cases", place, f.ties,
                       f.events_of);
  }
  const std::string ties = f.ties == 0 ? "" : fmt::format(", and between equal ones in {}", f.ties);
  return fmt::format("{} would choose otherwise in {} of {} cases{} ({}), by margins up to {}",
                     place, f.events, f.events_of, ties, share_text(f.share), two_digits(f.value));
}
std::string nothing(const FindingContext&) {
  return "";
}

constexpr FindingKindRow kRows[] = {
    {.kind = FindingKind::kOverflow,
     .name = "overflow",
     .help = "a value beyond the largest number became infinite",
     .rule = "finite before the rounding, infinite after it; everything that feeds it was finite",
     .breaks = true,
     .sentence = overflow_sentence,
     .follows = overflow_follows,
     .remedies = overflow_remedies},
    {.kind = FindingKind::kStorageOverflow,
     .name = "storage overflow",
     .help = "a weight, input, buffer or constant became infinite when it was stored",
     .rule = "infinite at its storage site; sites that read it show the same",
     .breaks = true,
     .sentence = storage_overflow_sentence,
     .follows = overflow_follows,
     .remedies = storage_remedies},
    {.kind = FindingKind::kSumOverflow,
     .name = "sum overflow",
     .help = "a sum exceeded the format it is formed in",
     .rule =
         "infinite in an accumulator, or before the result of an op that adds up is rounded; an "
         "update that is infinite although its micro-batches' gradients are finite; a norm of "
         "finite gradients that is infinite where they are clipped",
     .breaks = true,
     .sentence = sum_overflow_sentence,
     .follows = overflow_follows,
     .remedies = sum_remedies},
    {.kind = FindingKind::kStateOverflow,
     .name = "state overflow",
     .help = "optimizer state became infinite",
     .rule = "finite before the rounding, infinite after it, in the optimizer's state",
     .breaks = true,
     .sentence = state_overflow_sentence,
     .follows = nothing,
     .remedies = state_overflow_remedies},
    {.kind = FindingKind::kInvalid,
     .name = "invalid operation",
     .help = "0/0, inf - inf, log 0, 1/0 and the like",
     .rule =
         "NaN from finite operands, or an infinity at a pole whose operand rounding had made zero",
     .breaks = true,
     .sentence = invalid_sentence,
     .follows = overflow_follows,
     .remedies = invalid_remedies},
    {.kind = FindingKind::kScaledClip,
     .name = "scaled clip",
     .help = "gradients were clipped while still scaled",
     .rule = "in at least half of the steps taken the norm that was clipped is about the loss "
             "scale times "
             "the reference's",
     .breaks = false,
     .sentence = scaled_clip_sentence,
     .follows = nothing,
     .remedies = scaled_clip_remedies},
    {.kind = FindingKind::kCancellation,
     .name = "cancellation",
     .help =
         "an op amplified the rounding of its operands: a difference of nearly equal numbers, a "
         "steep function",
     .rule = "in steps that begin with the reference's weights: the loss is wrong by 16 unit "
             "roundoffs (1.6 % to 25 %) and a forward result by 10 %, or all weight gradients "
             "together by 50 % and a forward result by its own size, although the result's "
             "operands are right to an eighth of that",
     .breaks = false,
     .sentence = cancellation_sentence,
     .follows = nothing,
     .remedies = cancellation_remedies},
    {.kind = FindingKind::kStateUnderflow,
     .name = "state underflow",
     .help = "optimizer state became zero",
     .rule =
         "at least 1 % of its energy; or, of a state that divides, 10 % of its nonzero elements",
     .breaks = false,
     .sentence = state_sentence,
     .follows = nothing,
     .remedies = state_remedies},
    {.kind = FindingKind::kNoScaler,
     .name = "no scaler",
     .help = "gradients vanish, and the loss has no scale",
     .rule =
         "no gradient or underflow in a gradient of smaller range than bf16, at loss scale 1 and "
         "without a scale per tensor",
     .breaks = false,
     .sentence = no_scaler_sentence,
     .follows = nothing,
     .remedies = no_scaler_remedies},
    {.kind = FindingKind::kNoGradient,
     .name = "no gradient",
     .help = "a gradient became zero altogether",
     .rule = "in at least half of the steps, by its own rounding or by a forward value that was "
             "rounded to "
             "where the op has no slope; the reference has one there",
     .breaks = true,
     .sentence = no_gradient_sentence,
     .follows = nothing,
     .remedies = gradient_remedies},
    {.kind = FindingKind::kScaleCollapse,
     .name = "scale collapse",
     .help = "overflows force the loss scale down",
     .rule = "at least 25 % of the second half of the steps are skipped and the scale falls, or no "
             "step is "
             "taken, or the scale falls to 1 or below",
     .breaks = true,
     .sentence = collapse_sentence,
     .follows = nothing,
     .remedies = collapse_remedies},
    {.kind = FindingKind::kScaleFloor,
     .name = "scale floor",
     .help = "the scaler gave up at its smallest scale",
     .rule = "the lane stopped because of it",
     .breaks = true,
     .sentence = floor_sentence,
     .follows = nothing,
     .remedies = collapse_remedies},
    {.kind = FindingKind::kStorageUnderflow,
     .name = "storage underflow",
     .help = "a weight, input, buffer or constant lost energy to zero when it was stored",
     .rule = "at least 1 % of the energy, on average over the steps that store it, and the result "
             "of an op "
             "that reads it is wrong by 1 % of its energy",
     .breaks = false,
     .sentence = storage_underflow_sentence,
     .follows = nothing,
     .remedies = storage_remedies},
    {.kind = FindingKind::kUnderflow,
     .name = "underflow",
     .help = "a gradient lost energy to zero",
     .rule = "at least 1 % of the energy, on average over the steps, or of the weight gradient "
             "made from "
             "it",
     .breaks = false,
     .sentence = underflow_sentence,
     .follows = nothing,
     .remedies = gradient_remedies},
    {.kind = FindingKind::kForwardUnderflow,
     .name = "forward underflow",
     .help = "an activation lost energy to zero",
     .rule = "at least 1 % of the energy, on average over the steps",
     .breaks = false,
     .sentence = underflow_sentence,
     .follows = nothing,
     .remedies = gradient_remedies},
    {.kind = FindingKind::kSaturated,
     .name = "saturation",
     .help = "values were cut to the largest number",
     .rule = "at least 1 % of the energy, on average over the steps",
     .breaks = false,
     .sentence = saturated_sentence,
     .follows = nothing,
     .remedies = saturated_remedies},
    {.kind = FindingKind::kWrongLoss,
     .name = "wrong loss",
     .help = "with the same weights the loss is not the reference's",
     .rule = "in steps that begin with the reference's weights: by 16 unit roundoffs (1.6 % to "
             "25 %) and by 8 times what one ulp changes; no other finding of the forward pass "
             "explains it",
     .breaks = false,
     .sentence = wrong_loss_sentence,
     .follows = nothing,
     .remedies = wrong_loss_remedies},
    {.kind = FindingKind::kLostUpdates,
     .name = "lost updates",
     .help = "updates too small to move the weight",
     .rule =
         "at least 10 % of a parameter's update energy, or 90 % in each of the last 10 % of the "
         "steps (4 at least) where fp32 loses less than half of that: a learning rate that ends "
         "low; never with Kahan summation or stochastic rounding",
     .breaks = false,
     .sentence = updates_sentence,
     .follows = nothing,
     .remedies = updates_remedies},
    {.kind = FindingKind::kSwamping,
     .name = "swamping",
     .help = "small terms of sums had no effect",
     .rule =
         "products: at least 10 % of the terms, and an error of 10 % of the sum that FP32 does not "
         "show; other sums (pools, means, gradients of biases and of picked rows): that error; "
         "plain sums of the forward pass: 10 % of the energy of the smaller operand; running "
         "statistics and added-up gradients: 10 % of the energy added, where a statistic is also "
         "wrong by 1 % of its energy, and by more than one ulp explains, or takes nothing while "
         "the reference's goes one way",
     .breaks = false,
     .sentence = swamping_sentence,
     .follows = nothing,
     .remedies = swamping_remedies},
    {.kind = FindingKind::kLostConstant,
     .name = "lost constant",
     .help = "a number of the optimizer that the format cannot hold",
     .rule = "before the run, from the numbers alone",
     .breaks = false,
     .sentence = constant_sentence,
     .follows = nothing,
     .remedies = constant_remedies},
    {.kind = FindingKind::kFlippedDecisions,
     .name = "flipped decisions",
     .help = "a router, an order, a branch that the lane's own values would change",
     .rule = "at least 1 % of the recorded decisions at one place, and 2 of them, beyond the share "
             "that the reference's values would change; half of the ties that rounding made count; "
             "decisions that a lane took itself (--decisions own) count, too",
     .breaks = false,
     .sentence = flipped_sentence,
     .follows = nothing,
     .remedies = flipped_remedies},
    {.kind = FindingKind::kDrift,
     .name = "drift",
     .help = "no event; the rounding that moves the loss most",
     .rule = "only of a lane that is stalled, worse or unclear without another finding: the "
             "largest sum of "
             "error x derivative over a tensor, derivatives from the reference",
     .breaks = false,
     .sentence = drift_sentence,
     .follows = nothing,
     .remedies = drift_remedies},
};

}  // namespace

std::span<const FindingKindRow> finding_kinds() {
  return kRows;
}

std::vector<std::string> remedy_words(const FindingContext& context) {
  std::vector<std::string> words;
  // Of FP32's own faults no format is a remedy.
  if (context.of_reference && context.finding.kind != FindingKind::kInvalid) return words;
  for (const Remedy& remedy : row_of(context.finding.kind).remedies(context)) {
    if (remedy.told) words.push_back(remedy.words);
  }
  return words;
}

const FindingKindRow& row_of(FindingKind kind) {
  return kRows[static_cast<size_t>(kind)];
}

bool is_grave(const Finding& finding) {
  const bool is_at_equal_weights =
      finding.kind == FindingKind::kCancellation || finding.kind == FindingKind::kWrongLoss;
  const bool has_right_gradients = finding.spoilt_error < kWrongResult;
  return row_of(finding.kind).breaks || (is_at_equal_weights && !has_right_gradients);
}

std::string torch_name(const Site& site) {
  const size_t name = site.torch_op.find('.');
  if (name == std::string::npos) return "";
  const size_t overload = site.torch_op.find('.', name + 1);
  const std::string call = site.torch_op.substr(0, overload);
  constexpr std::pair<std::string_view, std::string_view> kCallsOfCaptures[] = {
      {"lockstep_capture.gradient", "torch.autograd.grad"},
      {"lockstep_capture.gradient_of", "torch.autograd.Function"},
      {"lockstep_capture.custom_gradient", "torch.autograd.Function"},
      {"lockstep_capture.layer_norm", "aten.layer_norm"},
      {"lockstep_capture.rms_norm", "aten.rms_norm"},
      {"lockstep_capture.group_norm", "aten.group_norm"},
      {"lockstep_capture.cosine_similarity", "aten.cosine_similarity"},
  };
  for (const auto& [recorded, written] : kCallsOfCaptures) {
    if (call == recorded) return std::string(written);
  }
  std::string plain = call.substr(name + 1);
  if (plain.ends_with('_')) plain.pop_back();  // in place
  return site.op == plain || site.op.starts_with(plain + "_backward") ? "" : call;
}

std::string place_text(const Site& site) {
  std::string text = site.layer.empty() ? "(no layer)" : site.layer;
  if (is_storage(site)) {
    text = stored_name(site);
  } else if (is_in_graph(site)) {
    text = op_text(text, site.op);
  } else {
    text = parameter_of(site);
  }
  std::string call = torch_name(site);
  if (is_in_graph(site) && is_named_by_capture(site.layer, site.torch_op)) {
    text = site.op == site.layer ? std::exchange(call, "") : site.op;
  }
  std::vector<std::string> more;
  for (const std::string& known : {call, site.source_line}) {
    if (!known.empty()) more.push_back(known);
  }
  return more.empty() ? text : text + " (" + join(more, ", ") + ")";
}

std::string two_digits(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::fabs(value);
  constexpr double kWhole = 1e5, kSmall = 1e-3;
  if (size >= 1 && size < kWhole && value == std::floor(value)) return fmt::format("{:.0f}", value);
  if (size >= kSmall && size < kWhole) {
    constexpr double kHundred = 99.5;  // 99.5 has three digits when rounded
    return size >= kHundred ? fmt::format("{:.0f}", value) : fmt::format("{:.2g}", value);
  }
  if (value == 0) return "0";
  const std::string digits = fmt::format("{:.1e}", value);  // "1.1e+05"
  const size_t e = digits.find('e');
  return fmt::format("{}e{}", digits.substr(0, e), std::stoi(digits.substr(e + 1)));
}

std::string share_text(double share) {
  constexpr double kPercent = 100;
  if (share >= 1) return "all";
  return two_digits(kPercent * share) + "%";
}

}  // namespace lockstep

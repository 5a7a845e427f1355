// What went wrong in a lane, where, and how much of it: plain data.
// find_findings() makes the list, and the report reads it. finding_kinds.h has a row for each kind:
// its sentence and its remedies.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// In the order of the rows in finding_kinds.cc, the gravest first.
enum class FindingKind : uint8_t {
  kOverflow,          // a value beyond the format's largest number became infinite
  kStorageOverflow,   // the same, of a weight, input, buffer or constant when it was stored
  kSumOverflow,       // a sum exceeded the format it is formed in
  kStateOverflow,     // optimizer state became infinite
  kInvalid,           // 0/0, inf - inf, log 0, 1/0 and the like
  kScaledClip,        // gradients were clipped while they held the loss scale
  kCancellation,      // at equal weights an op amplified the rounding of its operands
  kStateUnderflow,    // optimizer state became zero
  kNoScaler,          // gradients vanish, and the loss has no scale
  kNoGradient,        // a gradient became zero altogether
  kScaleCollapse,     // overflows in the backward pass force the loss scale down without end
  kScaleFloor,        // the scaler gave up
  kStorageUnderflow,  // weights, inputs, buffers or constants became zero when stored
  kUnderflow,         // a gradient lost a noticeable share of its energy to zero
  kForwardUnderflow,  // the same of an activation
  kSaturated,         // values beyond the largest number were set to it, with the same effect
  kWrongLoss,         // at equal weights the loss is another one
  kLostUpdates,       // weight updates too small to move the weight
  kSwamping,          // sums in which small terms had no effect
  kLostConstant,      // a number of the optimizer that the format cannot hold
  kFlippedDecisions,  // a router, an order, a branch that the lane's values would change
  kDrift,             // no event; the rounding that moves the loss most
};

// Energy: the sum of squares. All steps are 0-based.
struct Finding {
  FindingKind kind = FindingKind::kOverflow;
  int lane = 0;
  int64_t first_step = 0, last_step = 0;
  int64_t steps = 0;          // in which it happened
  int64_t skipped_steps = 0;  // of these, discarded by the loss scaler
  int32_t site = -1;          // -1: the lane as a whole
  bool backward = false;
  std::string format = {};  // of the site; "" if not recorded
  // The largest magnitude that was to be rounded and the format's largest finite number. kNoScaler:
  // the largest magnitude of the gradient in FP32 and the format's smallest number.
  // kFlippedDecisions: the largest margin by which a decision flipped. kCancellation, kWrongLoss:
  // the loss and the reference's, if they differ by too much.
  double value = std::numeric_limits<double>::quiet_NaN();
  double limit = std::numeric_limits<double>::quiet_NaN();
  double share = std::numeric_limits<double>::quiet_NaN();  // 0..1, of what the kind's row says
  // kCancellation: how many times the operands are larger than the result; where its text is
  // "amplification", by how much the op multiplied their relative error.
  double factor = std::numeric_limits<double>::quiet_NaN();
  // kFlippedDecisions: the decisions that flipped and all of them, and those of
  // equal values.
  uint64_t events = 0, events_of = 0, ties = 0;
  double scale = 1;  // the loss scale within `value`
  // kUnderflow, kForwardUnderflow: the step whose batch, far larger than any other, lowered the
  // scale of the values; -1: none did.
  int64_t outlier_step = -1;
  // kNoScaler: a static loss scale that would keep the gradients; NaN: there is none.
  double fitting_scale = std::numeric_limits<double>::quiet_NaN();
  int32_t cause = -1;             // the site of the operand that caused it, or that was lost
  double pole = 0;                // kInvalid: the magnitude that the cause was rounded to
  std::string_view outside = {};  // kInvalid: what the cause became, OpMeaning::outside
  // The site whose rounding made the cause what it is, or that an op amplified: nearly equal
  // numbers became equal, a probability became 1.
  int32_t rounded = -1;
  // For underflow in a gradient: the weight gradient made from it, if that has lost more, and its
  // relative error (of the norm). kCancellation, kWrongLoss: of all weight gradients; NaN: there is
  // none.
  int32_t spoilt = -1;
  double spoilt_error = std::numeric_limits<double>::quiet_NaN();
  // The warning of kLostConstant; the name of optimizer state or of a buffer; "NaN" or "infinite"
  // of kInvalid; of kDrift what moves the loss.
  std::string text = {};
  bool is_tail = false;       // kLostUpdates: of the last steps alone
  bool is_other_sum = false;  // kSwamping: a sum that is not one of products
  // Of the forward pass in a skipped step: a buffer that is not finite from then on; -1: none.
  int32_t spoilt_buffer = -1;
  // The sites that went wrong because of it, in execution order, one for each layer.
  std::vector<int32_t> consequences = {};
};

// Whether two findings, from two runs of one graph, have the same kind and site.
inline bool is_same_finding(const Finding& a, const Finding& b) {
  return a.kind == b.kind && a.site == b.site;
}

}  // namespace lockstep

// The edits that remedies are made of, from one value to the whole policy.
// Each function gives the ways of doing one thing, the smallest first; an empty list where it does
// not apply to the finding's place. Whether an edit helps is only known by running it.
#pragma once

#include <vector>

#include "analysis/findings/remedy.h"

namespace lockstep {

// Forward ops in another format, their gradients with them: the op, the op and what reads its
// result, the layer, the layer and its readers.
std::vector<RemedyEdit> op_in_fp32(const EditContext& c);
std::vector<RemedyEdit> op_in_fp32_or_bf16(const EditContext& c);
std::vector<RemedyEdit> layer_in_fp32(const EditContext& c);
std::vector<RemedyEdit> layer_in_fp32_or_bf16(const EditContext& c);
// The values of this role that the layer reads or makes: wins over a rule of the policy that rounds
// them, which the format of ops does not.
std::vector<RemedyEdit> values_in_bf16_or_fp32(const EditContext& c);
// FP32 for the ops that compute the operands of a decision.
std::vector<RemedyEdit> deciders_in_fp32(const EditContext& c);
// FP32 for the op, and for it and 1, 2, 4, ... levels of ops before it, with the inputs and buffers
// that they read as they are stored.
std::vector<RemedyEdit> operands_in_fp32(const EditContext& c);
// FP32 for the op or the stored value whose rounding the finding names, and for it with the ops on
// the way to the place that showed the error.
std::vector<RemedyEdit> rounded_in_fp32(const EditContext& c);
// bf16 wherever the policy says fp16, without a loss scale.
std::vector<RemedyEdit> bf16_for_fp16(const EditContext& c);

// Sums, of the op or of all.
std::vector<RemedyEdit> sums_in_fp32(const EditContext& c);

// What is stored: the value alone, with what reads it, and all of its kind.
std::vector<RemedyEdit> stored_in_fp32_or_bf16(const EditContext& c);
// Weights in FP32, cast for each op as autocast does.
std::vector<RemedyEdit> weights_as_in_autocast(const EditContext& c);

// The loss scale.
std::vector<RemedyEdit> a_loss_scale(const EditContext& c);
std::vector<RemedyEdit> fitting_loss_scale(const EditContext& c);
std::vector<RemedyEdit> larger_loss_scale(const EditContext& c);
std::vector<RemedyEdit> lower_loss_scale(const EditContext& c);
// Inside the layer alone: its gradients multiplied by a power of two.
std::vector<RemedyEdit> layer_loss_scale(const EditContext& c);
std::vector<RemedyEdit> clip_after_unscale(const EditContext& c);

// Scales of factors.
std::vector<RemedyEdit> scale_per_tensor(const EditContext& c);
std::vector<RemedyEdit> shorter_history(const EditContext& c);

// The optimizer.
std::vector<RemedyEdit> state_in_fp32(const EditContext& c);
std::vector<RemedyEdit> fp32_masters(const EditContext& c);
std::vector<RemedyEdit> other_update_rounding(const EditContext& c);

// Changes of the run: these change fp32, too.
std::vector<RemedyEdit> larger_eps(const EditContext& c);
std::vector<RemedyEdit> clip_gradients(const EditContext& c);
std::vector<RemedyEdit> smaller_values(const EditContext& c);

}  // namespace lockstep

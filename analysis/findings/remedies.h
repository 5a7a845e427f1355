// What to try against a finding of each kind: the words of the report and the edits that
// `recommend --fix` runs, in one list. A remedy without edits is one that no policy, option or
// rewrite can say; it stays untested.
#pragma once

#include <vector>

#include "analysis/findings/finding_context.h"
#include "analysis/findings/remedy.h"

namespace lockstep {

std::vector<Remedy> overflow_remedies(const FindingContext& c);
std::vector<Remedy> storage_remedies(const FindingContext& c);
std::vector<Remedy> sum_remedies(const FindingContext& c);
std::vector<Remedy> invalid_remedies(const FindingContext& c);
std::vector<Remedy> state_overflow_remedies(const FindingContext& c);
std::vector<Remedy> scaled_clip_remedies(const FindingContext& c);
std::vector<Remedy> state_remedies(const FindingContext& c);
std::vector<Remedy> no_scaler_remedies(const FindingContext& c);
std::vector<Remedy> gradient_remedies(const FindingContext& c);
std::vector<Remedy> collapse_remedies(const FindingContext& c);
std::vector<Remedy> saturated_remedies(const FindingContext& c);
std::vector<Remedy> updates_remedies(const FindingContext& c);
std::vector<Remedy> swamping_remedies(const FindingContext& c);
std::vector<Remedy> constant_remedies(const FindingContext& c);
std::vector<Remedy> flipped_remedies(const FindingContext& c);
std::vector<Remedy> cancellation_remedies(const FindingContext& c);
std::vector<Remedy> drift_remedies(const FindingContext& c);
std::vector<Remedy> wrong_loss_remedies(const FindingContext& c);

}  // namespace lockstep

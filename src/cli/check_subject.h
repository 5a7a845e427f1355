// What a check looks at, as a run file: a run file itself, or a capture or built-in model that is
// replayed for it with the options of a baseline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/check/baseline.h"
#include "analysis/check/baseline_key.h"
#include "analysis/check/ensemble_runs.h"

namespace lockstep {

// What `baseline record` and `check --a --b` replay by default.
inline constexpr char kCheckedLanes[] = "fp32,torch-autocast-fp16,torch-autocast-bf16";
inline constexpr int64_t kCheckedSteps = 20;  // of a built-in model

enum class SubjectKind : uint8_t { kRunFile, kCapture, kModel };
// Throws: InputError: no such file, or neither a file nor a model.
SubjectKind kind_of_subject(const std::string& subject);

// The options with which the baseline was recorded, for another subject. A policy file that is
// still there is read anew, so that its changes are checked; one that has gone is taken from the
// baseline.
RunOptions options_for(const Baseline& baseline, const std::string& subject, SubjectKind kind);

// `note`: gets what a person has to know of the file; without it, the note goes to standard error.
Baseline read_baseline(const std::string& path, std::string* note = nullptr);

// Throws: InputError: no such file or capture, or a damaged one.
CheckedModel checked_model_of(const std::string& subject, SubjectKind kind);

struct FoundBaseline {
  std::optional<Baseline> baseline;     // nothing: none is comparable
  std::string note;                     // fit_note(), and that of read_baseline()
  std::vector<std::string> candidates;  // what the folder holds, one line each
};
// The baseline of a folder (*.json) that fits the subject best.
// Throws: InputError: no such folder; two fit equally well.
FoundBaseline find_baseline(const std::string& folder, const CheckedModel& subject);

}  // namespace lockstep

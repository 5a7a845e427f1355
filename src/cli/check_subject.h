// What a check looks at, as a run file: a run file itself, or a capture or built-in model that is
// replayed for it with the options of a baseline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/check/baseline.h"
#include "analysis/check/ensemble_runs.h"

namespace lockstep {

// What `baseline record` and `check --a --b` replay unless told otherwise.
inline constexpr char kCheckedLanes[] = "fp32,torch-autocast-fp16,torch-autocast-bf16";
inline constexpr int64_t kCheckedSteps = 20;  // of a built-in model

enum class SubjectKind : uint8_t { kRunFile, kCapture, kModel };
// Throws: InputError: no such file, or neither a file nor a model.
SubjectKind kind_of_subject(const std::string& subject);

// The options with which the baseline was recorded, for another subject. A policy file that is
// still there is read anew, so that its changes are checked; one that has gone is taken from the
// baseline.
RunOptions options_for(const Baseline& baseline, const std::string& subject, SubjectKind kind);

Baseline read_baseline(const std::string& path);

// The baseline of a folder (*.json) that was recorded of such a run: the same parameters and lanes.
// Nothing: none of them; `candidates` then names what is there.
// Throws: InputError: no such folder; more than one fits.
std::optional<Baseline> find_baseline(const std::string& folder, const ModelIdentity& run,
                                      std::vector<std::string>& candidates);

}  // namespace lockstep

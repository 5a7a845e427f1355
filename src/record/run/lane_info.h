// A lane's description in a run file, and one of its evaluations. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/lower/layer_facts.h"
#include "src/policy/policy.h"
#include "src/record/hdf5/stored_fields.h"
#include "src/train/step_record.h"

namespace lockstep {

struct LaneDescription;

// From a lane's attribute; absent from older files. A number that is no cause is a problem.
DeathCause read_death_cause(const StoredFields& lane);

// The reference is the first lane of every run (order_lanes).
inline constexpr int kReferenceIndex = 0;

// The one lane of a monitor's file: the user's own run, measured where it trained. Nothing was
// replayed, so there is no reference.
inline constexpr std::string_view kLiveLane = "live";
// RunOptions::steps of such a run, whose loop alone knows when it ends.
inline constexpr int64_t kUnknownSteps = int64_t{1} << 40;

struct LaneInfo {
  std::string name, engine, target, policy_text;
  std::string policy_hash;             // of the policy with all that it extends
  std::vector<std::string> fallbacks;  // kernels that ran in software instead of on the engine
  bool is_reference = false;
  bool is_of_larger_model = false;  // Policy's: the run is of parts
  int64_t died_at = -1;
  DeathCause died_of = DeathCause::kAlive;  // kAlive also in files without it
  // The losses that have a scaler each, in column order; empty: one scaler for all.
  std::vector<std::string> scaler_losses;
  bool is_live() const { return name == kLiveLane; }
  size_t scaler_count() const { return scaler_losses.empty() ? 1 : scaler_losses.size(); }
  // Numbers of the run that the lane's formats cannot hold (beta2 = 0.999 in bf16).
  std::vector<std::string> warnings;
  // By site id: the format that values are rounded to there; "": the lane lacks the site. Empty in
  // files without it.
  std::vector<std::string> site_formats;
  // By site id: the sums that the engine's device forms there, "hopper_fp16 fp16 x fp16"; "": none.
  // Empty without a device.
  std::vector<std::string> device_sums;
  // Bytes that the lane's recipe keeps on hardware; absent from files of version 1.
  std::optional<MemoryFacts> memory;
};
// What a file holds of a lane before its first step.
LaneInfo lane_info(const LaneDescription& lane);

// A lane's policy, parsed from the text in the run file. Throws: as parse_recorded_policy.
Policy policy_of(const LaneInfo& lane);

struct Evaluation {
  int64_t steps_done = 0;
  double loss = 0, accuracy = 0;
  int64_t example_count = 0;
};

}  // namespace lockstep

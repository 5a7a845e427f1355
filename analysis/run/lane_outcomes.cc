// Gathers what judge_seeds takes.
#include "analysis/run/lane_outcomes.h"

#include <cmath>

#include "src/policy/twin_lane.h"
#include "src/update/optimizers.h"

namespace lockstep {
namespace {

JudgeInput input_of(const SeedCourses& seed, size_t lane) {
  const LaneCourse &own = seed.lanes[lane], &reference = seed.lanes.front();
  JudgeInput input{.lane = own.loss,
                   .reference = reference.loss,
                   .twins = {},
                   .held_out = own.held_out,
                   .reference_held_out = reference.held_out,
                   .twins_held_out = {},
                   .skips = own.skips,
                   .died_at = own.died_at,
                   .keeps_own_weights = seed.keeps_own_weights};
  for (const LaneCourse& twin : seed.lanes) {
    if (twin_number(twin.name) == 0 || &twin == &own) continue;
    input.twins.emplace_back(twin.loss);
    input.twins_held_out.push_back(twin.held_out);
  }
  return input;
}

}  // namespace

std::vector<int64_t> skipped_steps(const std::vector<ScalerRecord>& scaler) {
  std::vector<int64_t> steps;
  for (size_t i = 0; i < scaler.size() && std::isfinite(scaler[i].scale); ++i) {
    if (scaler[i].skipped) steps.push_back(static_cast<int64_t>(i));
  }
  return steps;
}

HeldOut held_out_of(const std::vector<Evaluation>& evaluations) {
  if (evaluations.empty() || !std::isfinite(evaluations.back().accuracy)) return {};
  const Evaluation& last = evaluations.back();
  return {.correct = std::llround(last.accuracy * static_cast<double>(last.example_count)),
          .answers = last.example_count};
}

bool has_recorded_updates(const RunOptions& options) {
  return options.optimizer.name == recorded_updates().name;
}

bool trains_itself(const RunOptions& options) {
  return options.mode == LaneMode::kFree && !has_recorded_updates(options);
}

SeedCourses read_courses(const RunFile& run) {
  SeedCourses out{
      .seed = run.options().seed, .keeps_own_weights = trains_itself(run.options()), .lanes = {}};
  for (int lane = 0; lane < static_cast<int>(run.lanes().size()); ++lane) {
    const LaneInfo& info = run.lanes()[static_cast<size_t>(lane)];
    out.lanes.push_back({.name = info.name,
                         .loss = run.loss(lane),
                         .held_out = held_out_of(run.evaluations(lane)),
                         .skips = skipped_steps(run.scalers(lane)),
                         .died_at = info.died_at,
                         .is_reference = info.is_reference});
  }
  return out;
}

std::vector<SeedCourses> read_all_courses(const RunFile& first) {
  std::vector<SeedCourses> all = {read_courses(first)};
  for (size_t i = 1; i < first.seeds().size(); ++i) {
    const RunFile run(first.path(), /*allow_empty=*/true, first.seeds()[i]);
    if (run.steps() == first.steps()) all.push_back(read_courses(run));
  }
  return all;
}

std::vector<LaneJudgement> judge_lanes(std::span<const SeedCourses> seeds) {
  std::vector<LaneJudgement> judged;
  for (size_t lane = 0; lane < seeds.front().lanes.size(); ++lane) {
    std::vector<JudgeInput> inputs;
    for (const SeedCourses& seed : seeds) inputs.push_back(input_of(seed, lane));
    LaneJudgement& one = judged.emplace_back(judge_seeds(inputs));
    const bool is_reference = seeds.front().lanes[lane].is_reference;
    if (is_reference && one.verdict != Verdict::kBroke) one.verdict = Verdict::kReference;
  }
  return judged;
}

}  // namespace lockstep

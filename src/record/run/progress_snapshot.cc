// The JSON of the snapshot; docs/run-file.md lists its keys.
#include "src/record/run/progress_snapshot.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/core/process.h"
#include "src/core/sealed_text.h"
#include "src/core/text.h"
#include "src/core/text_file.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

// Keeps the first of every two.
template <typename T>
void drop_every_other(std::vector<T>& values) {
  for (size_t i = 0; 2 * i < values.size(); ++i) values[i] = values[2 * i];
  values.resize((values.size() + 1) / 2);
}

ordered_json process_json() {
  const ProcessMark process = this_process();
  return {{"id", process.id}, {"started", process.started}, {"host", process.host}};
}

void add_findings(const std::vector<std::vector<SnapshotFinding>>& by_lane, ordered_json& lanes) {
  for (size_t i = 0; i < lanes.size(); ++i) {
    lanes[i]["finding_count"] = by_lane.at(i).size();
    ordered_json& findings = lanes[i]["findings"] = ordered_json::array();
    for (const SnapshotFinding& finding : by_lane[i]) {
      if (findings.size() == kSnapshotFindings) break;
      findings.push_back({{"kind", finding.kind},
                          {"first_step", finding.first_step},
                          {"sentence", finding.sentence}});
    }
  }
}

}  // namespace

ProgressSnapshot::ProgressSnapshot(std::string run_path, const RunDescription& run,
                                   uint64_t first_seed, FindingsSoFar findings)
    : findings_(std::move(findings)),
      path_(run_path + ".progress.json"),
      sites_(run.sites),
      steps_(run.options->steps),
      seed_number_(static_cast<int64_t>(run.options->seed - first_seed) + 1),
      seeds_(run.options->seeds) {
  for (const LaneDescription& lane : run.lanes) {
    lanes_.push_back({.name = lane.name,
                      .scaler_losses = lane.scaler_losses,
                      .losses = {},
                      .scales = {},
                      .skips = {}});
  }
  last_.step = -1;
}

void ProgressSnapshot::start() {
  write();
}

void ProgressSnapshot::add_to_course(const StepRecord& record) {
  const bool is_kept = record.step % stride_ == 0;
  if (is_kept) course_.push_back(record.step);
  for (size_t i = 0; i < std::min(lanes_.size(), record.lanes.size()); ++i) {
    const LaneStep& step = record.lanes[i];
    if (!step.alive) continue;
    Lane& lane = lanes_[i];
    if (is_kept) {
      lane.losses.push_back(step.loss);
      lane.scales.push_back(step.scalers.empty() ? 1 : step.scalers[0].scale);
    }
    const auto found = std::ranges::find_if(
        step.scalers, [](const ScalerRecord& s) { return s.skipped && s.found_inf; });
    if (found == step.scalers.end()) continue;
    ++lane.skip_count;
    lane.skips.push_back(
        {.step = record.step, .scale = found->scale, .culprit_site = found->culprit_site});
    if (lane.skips.size() > kSnapshotSkips) lane.skips.erase(lane.skips.begin());
  }
  if (course_.size() <= kSnapshotSteps) return;
  stride_ *= 2;
  drop_every_other(course_);
  for (Lane& lane : lanes_) {
    drop_every_other(lane.losses);
    drop_every_other(lane.scales);
  }
}

void ProgressSnapshot::recall(const RunFile& run, int64_t end) {
  std::vector<std::vector<LaneStep>> courses;  // by lane
  for (size_t i = 0; i < std::min(lanes_.size(), run.lanes().size()); ++i) {
    courses.push_back(run.course(static_cast<int>(i)));
  }
  for (int64_t step = 0; step < end; ++step) {
    StepRecord record;
    record.step = step;
    for (const std::vector<LaneStep>& course : courses) {
      record.lanes.push_back(course.at(static_cast<size_t>(step)));
    }
    add_to_course(record);
  }
}

void ProgressSnapshot::step(const StepRecord& record) {
  if (first_step_ < 0) first_step_ = record.step;
  last_.step = record.step;
  last_.lanes.resize(record.lanes.size());
  for (size_t i = 0; i < record.lanes.size(); ++i) {
    last_.lanes[i].alive = record.lanes[i].alive;
    last_.lanes[i].loss = record.lanes[i].loss;
    last_.lanes[i].scalers = record.lanes[i].scalers;
  }
  add_to_course(record);
  constexpr auto kInterval = std::chrono::milliseconds(500);
  const auto now = std::chrono::steady_clock::now();
  if (now - written_ < kInterval) return;
  written_ = now;
  write();
}

void ProgressSnapshot::finish() {
  if (last_.step < 0) return;  // a complete run was resumed: its last snapshot says more
  const bool is_done = steps_ == kUnknownSteps || last_.step + 1 >= steps_;
  if (!is_done) state_ = "stopped";
  if (is_done && seed_number_ == seeds_) state_ = "finished";
  write();
}

void ProgressSnapshot::write() {
  const int64_t done = last_.step + 1;
  ordered_json json = {{"state", state_}, {"steps_done", done}};
  const bool knows_steps = steps_ != kUnknownSteps;
  if (knows_steps) json["steps"] = steps_;
  if (seeds_ > 1) {
    json["seed_number"] = seed_number_;
    json["seeds"] = seeds_;
  }
  json["process"] = process_json();
  if (first_step_ >= 0 && knows_steps && done < steps_) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started_;
    json["seconds_left"] = taken.count() / static_cast<double>(done - first_step_) *
                           static_cast<double>(steps_ - done);
  }
  json["course"] = course_;
  json["lanes"] = ordered_json::array();
  for (size_t i = 0; i < lanes_.size(); ++i) json["lanes"].push_back(lane_json(i));
  try {
    if (findings_) add_findings(findings_(), json["lanes"]);
  } catch (const std::exception& error) {
    json["no_findings_because"] = error.what();
  }
  try {
    constexpr int kOneLine = -1;
    write_text_file_atomically(
        path_,
        sealed(json.dump(kOneLine, ' ', false, ordered_json::error_handler_t::replace) + "\n"),
        path_ + ".tmp");
  } catch (const InputError&) {
    // Only a convenience: the run file itself reports a full disk.
  }
}

nlohmann::ordered_json ProgressSnapshot::lane_json(size_t index) const {
  const Lane& lane = lanes_[index];
  const LaneStep step = index < last_.lanes.size() ? last_.lanes[index] : LaneStep();
  const bool has_step = step.alive && index < last_.lanes.size();
  ordered_json json = {{"name", lane.name}, {"alive", step.alive}};
  if (has_step) json["loss"] = step.loss;  // null when not finite
  if (has_step && !step.scalers.empty()) {
    if (lane.scaler_losses.empty()) json["loss_scale"] = step.scalers[0].scale;
    for (size_t k = 0; k < lane.scaler_losses.size(); ++k) {
      json["loss_scale"][lane.scaler_losses[k]] = step.scalers.at(k).scale;
    }
  }
  json["losses"] = lane.losses;
  json["scales"] = lane.scales;
  json["skipped_steps"] = lane.skip_count;
  json["skips"] = ordered_json::array();
  for (const Skip& skip : lane.skips) {
    ordered_json entry = {{"step", skip.step}, {"scale", skip.scale}};
    if (skip.culprit_site >= 0) {
      const Site& site = sites_->sites[static_cast<size_t>(skip.culprit_site)];
      entry["culprit"] = site.label();
      entry["source_line"] = site.source_line;
    }
    json["skips"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace lockstep

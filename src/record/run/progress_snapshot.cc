#include "src/record/run/progress_snapshot.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"

namespace lockstep {

ProgressSnapshot::ProgressSnapshot(std::string run_path, const std::vector<LaneDescription>& lanes,
                                   const RunOptions& options, uint64_t first_seed)
    : path_(run_path + ".progress.json"),
      steps_(options.steps),
      seed_number_(static_cast<int64_t>(options.seed - first_seed) + 1),
      seeds_(options.seeds) {
  for (const LaneDescription& lane : lanes) {
    lane_names_.push_back(lane.name);
    scaler_losses_.push_back(lane.scaler_losses);
  }
  last_.step = -1;
}

void ProgressSnapshot::step(const StepRecord& record) {
  last_.step = record.step;
  last_.lanes.resize(record.lanes.size());
  for (size_t i = 0; i < record.lanes.size(); ++i) {
    last_.lanes[i].alive = record.lanes[i].alive;
    last_.lanes[i].loss = record.lanes[i].loss;
    last_.lanes[i].scalers = record.lanes[i].scalers;
  }
  constexpr auto kInterval = std::chrono::milliseconds(500);
  const auto now = std::chrono::steady_clock::now();
  if (now - written_ < kInterval) return;
  written_ = now;
  write();
}

void ProgressSnapshot::finish() {
  if (last_.step < 0) return;  // a complete run was resumed: its last snapshot says more
  const bool is_done = last_.step + 1 >= steps_;
  if (!is_done) state_ = "stopped";
  if (is_done && seed_number_ == seeds_) state_ = "finished";
  write();
}

void ProgressSnapshot::write() {
  nlohmann::ordered_json json = {
      {"state", state_}, {"steps_done", last_.step + 1}, {"steps", steps_}};
  if (seeds_ > 1) {
    json["seed_number"] = seed_number_;
    json["seeds"] = seeds_;
  }
  json["lanes"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < last_.lanes.size() && i < lane_names_.size(); ++i) {
    const LaneStep& lane = last_.lanes[i];
    nlohmann::ordered_json entry = {{"name", lane_names_[i]}, {"alive", lane.alive}};
    if (lane.alive) entry["loss"] = lane.loss;  // null when not finite
    if (lane.alive && !lane.scalers.empty()) {
      if (scaler_losses_[i].empty()) entry["loss_scale"] = lane.scalers[0].scale;
      for (size_t k = 0; k < scaler_losses_[i].size(); ++k) {
        entry["loss_scale"][scaler_losses_[i][k]] = lane.scalers.at(k).scale;
      }
    }
    json["lanes"].push_back(std::move(entry));
  }
  try {
    write_text_file_atomically(path_, json.dump() + "\n");
  } catch (const InputError&) {
    // Only a convenience: the run file itself reports a full disk.
  }
}

}  // namespace lockstep

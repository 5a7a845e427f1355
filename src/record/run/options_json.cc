#include "src/record/run/options_json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/core/text.h"
#include "src/policy/policy.h"
#include "src/update/optimizers.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// Every number of the row, given or not, because defaults may change.
Json choice_to_json(const HyperChoice& choice, std::span<const HyperParameter> parameters) {
  Json j = {{"name", choice.name}};
  const HyperNumbers numbers(parameters, choice.values);
  for (const HyperParameter& p : parameters) j[std::string(p.name)] = numbers[p.name];
  return j;
}

// Numbers that the row lacks are left out: files of version 1 held those of every optimizer.
HyperChoice choice_from_json(const Json& j, std::span<const HyperParameter> parameters) {
  HyperChoice choice{j.at("name"), {}};
  for (const HyperParameter& p : parameters) {
    const auto it = j.find(std::string(p.name));
    if (it != j.end()) choice.values[std::string(p.name)] = it->get<double>();
  }
  return choice;
}
HyperChoice optimizer_from_json(const Json& j) {
  return choice_from_json(j, find_optimizer(j.at("name").get<std::string>()).parameters);
}

Json to_object(const RunOptions& o) {
  Json groups = Json::array();
  for (const ParameterGroup& group : o.groups) {
    groups.push_back(
        {{"layers", group.layers},
         {"optimizer",
          choice_to_json(group.optimizer, find_optimizer(group.optimizer.name).parameters)}});
  }
  return {
      {"model", o.model},
      {"sizes", o.sizes},
      {"data", o.data},
      {"lanes", o.lanes},
      {"steps", o.steps},
      {"batch", o.batch},
      {"accumulate", o.accumulate},
      {"workers", o.workers},
      {"backward", o.backward_per_loss ? "per-loss" : "joint"},
      {"optimizer", choice_to_json(o.optimizer, find_optimizer(o.optimizer.name).parameters)},
      {"schedule", choice_to_json(o.schedule, find_schedule(o.schedule.name).parameters)},
      {"groups", groups},
      {"clip_norm", o.clip_norm},
      {"clip_norm_type", std::isinf(o.clip_norm_type) ? Json("inf") : Json(o.clip_norm_type)},
      {"clip_value", o.clip_value},
      {"clips_scaled", o.clips_scaled},
      {"loss_factor", o.loss_factor},
      {"freeze", join(o.freeze, ",")},
      {"eval_batch_norm", join(o.eval_batch_norm, ",")},
      {"batch_norm_eps", o.batch_norm_eps ? Json(*o.batch_norm_eps) : Json("model's own")},
      {"rewrites", join(o.rewrites, ",")},
      {"loop_changes", hyper_values_text(o.loop_changes)},
      {"capture_hash", o.capture_hash},
      {"cycle", o.cycle},
      {"captured_order", o.captured_order},
      {"start_from", o.start_from},
      {"start_hash", o.start_hash},
      {"eval_policy", o.eval_in_fp32 ? "fp32" : "own"},
      {"mode", o.mode == LaneMode::kFree ? "free" : "synced"},
      {"decisions", o.decisions == Decisions::kRecorded ? "recorded" : "own"},
      {"eval_every", o.eval_every},
      {"histogram_every", o.histogram_every},
      {"sums_every", o.sums_every},
      {"checkpoint_every", o.checkpoint_every},
      {"seed", o.seed},
      {"seeds", o.seeds},
      {"nudge", o.nudge},
  };
}

}  // namespace

std::string options_to_json(const RunOptions& options) {
  return to_object(options).dump();
}

RunOptions options_from_json(std::string_view json) {
  const Json j = Json::parse(json);
  RunOptions o;
  j.at("model").get_to(o.model);
  if (j.contains("sizes")) j.at("sizes").get_to(o.sizes);  // files of version 1 lack them
  j.at("data").get_to(o.data);
  j.at("lanes").get_to(o.lanes);
  j.at("steps").get_to(o.steps);
  j.at("batch").get_to(o.batch);
  o.optimizer = optimizer_from_json(j.at("optimizer"));
  // Files of version 1 have none of these; the defaults are what those runs did.
  o.accumulate = j.value("accumulate", o.accumulate);
  o.workers = j.value("workers", o.workers);
  o.backward_per_loss = j.value("backward", "joint") == "per-loss";
  if (j.contains("schedule")) {
    const Json& schedule = j["schedule"];
    o.schedule = choice_from_json(schedule,
                                  find_schedule(schedule.at("name").get<std::string>()).parameters);
  }
  for (const Json& group : j.value("groups", Json::array())) {
    o.groups.push_back({group.at("layers"), optimizer_from_json(group.at("optimizer"))});
  }
  o.clip_norm = j.value("clip_norm", o.clip_norm);
  const Json norm_type = j.value("clip_norm_type", Json(o.clip_norm_type));
  o.clip_norm_type =
      norm_type.is_string() ? std::numeric_limits<double>::infinity() : norm_type.get<double>();
  o.clip_value = j.value("clip_value", o.clip_value);
  o.clips_scaled = j.value("clips_scaled", o.clips_scaled);
  o.loss_factor = j.value("loss_factor", o.loss_factor);
  const auto globs = [&](const char* key) {
    const std::string text = j.value(key, "");
    return text.empty() ? std::vector<std::string>{} : split(text, ',');
  };
  o.freeze = globs("freeze");
  o.eval_batch_norm = globs("eval_batch_norm");
  if (const auto eps = j.find("batch_norm_eps"); eps != j.end() && eps->is_number()) {
    o.batch_norm_eps = eps->get<double>();
  }
  o.rewrites = globs("rewrites");
  const std::string changes = j.value("loop_changes", "");
  if (!changes.empty()) o.loop_changes = parse_hyper_values("loop_changes", changes);
  o.capture_hash = j.value("capture_hash", o.capture_hash);
  o.cycle = j.value("cycle", o.cycle);
  o.captured_order = j.value("captured_order", o.captured_order);
  o.start_from = j.value("start_from", o.start_from);
  o.start_hash = j.value("start_hash", o.start_hash);
  o.eval_in_fp32 = j.value("eval_policy", "own") == kReferenceLane;
  o.mode = j.at("mode") == "synced" ? LaneMode::kSynced : LaneMode::kFree;
  o.decisions = j.value("decisions", "recorded") == "own" ? Decisions::kOwn : Decisions::kRecorded;
  j.at("eval_every").get_to(o.eval_every);
  j.at("histogram_every").get_to(o.histogram_every);
  o.sums_every = j.value("sums_every", int64_t{0});  // older files sampled nothing
  j.at("checkpoint_every").get_to(o.checkpoint_every);
  j.at("seed").get_to(o.seed);
  o.seeds = j.value("seeds", int64_t{1});  // older files hold one
  o.nudge = j.value("nudge", uint64_t{0});
  return o;
}

std::vector<std::string> option_differences(const RunOptions& file, const RunOptions& now) {
  const Json before = to_object(file).flatten(), after = to_object(now).flatten();
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& key) {
    const std::string x = before.contains(key) ? before[key].dump() : "nothing";
    const std::string y = after.contains(key) ? after[key].dump() : "nothing";
    // "/optimizer/lr" -> "optimizer/lr"
    if (x != y) differences.push_back(key.substr(1) + ": " + x + " in the file, " + y + " now");
  };
  for (const auto& [key, value] : before.items()) compare(key);
  for (const auto& [key, value] : after.items()) {
    if (!before.contains(key)) compare(key);
  }
  return differences;
}

}  // namespace lockstep

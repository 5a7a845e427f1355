#include "src/record/run/options_json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/json_text.h"
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

std::string shown(const Json& j) {
  constexpr size_t kMost = 40;
  return printable(j.dump(-1, ' ', false, Json::error_handler_t::replace), kMost);
}

template <typename T>
constexpr std::string_view kWanted = std::is_same_v<T, bool>       ? "true or false"
                                     : std::is_integral_v<T>       ? "an integer in its range"
                                     : std::is_floating_point_v<T> ? "a number"
                                                                   : "a text";

// Whether the value has the type, so that reading it changes nothing.
template <typename T>
bool holds(const Json& j) {
  if constexpr (std::is_same_v<T, bool>) return j.is_boolean();
  if constexpr (std::is_same_v<T, std::string>) return j.is_string();
  if constexpr (std::is_same_v<T, double>) return j.is_number();
  if constexpr (std::is_same_v<T, uint64_t>) return j.is_number_unsigned();
  if constexpr (std::is_same_v<T, int64_t>) {
    return j.is_number_integer() && (!j.is_number_unsigned() || j.get<uint64_t>() <= INT64_MAX);
  }
  return false;
}

template <typename T>
T value_of(const Json& j, std::string_view name) {
  if (holds<T>(j)) return j.get<T>();
  throw InputError(fmt::format("options: '{}' must be {}, is {}", name, kWanted<T>, shown(j)));
}
template <typename T>
T field(const Json& object, const char* key) {
  const auto found = object.find(key);  // end() where this is no object
  if (found == object.end()) throw InputError(fmt::format("options: '{}' is missing", key));
  return value_of<T>(*found, key);
}
template <typename T>
T field(const Json& object, const char* key, const T& otherwise) {
  return object.contains(key) ? field<T>(object, key) : otherwise;
}

// Numbers that the row lacks are left out: files of version 1 held those of every optimizer.
HyperChoice choice_from_json(const Json& j, std::span<const HyperParameter> parameters) {
  HyperChoice choice{field<std::string>(j, "name"), {}};
  for (const HyperParameter& p : parameters) {
    const std::string name(p.name);
    if (j.contains(name)) choice.values[name] = field<double>(j, name.c_str());
  }
  return choice;
}
HyperChoice optimizer_from_json(const Json& j) {
  return choice_from_json(j, find_optimizer(field<std::string>(j, "name")).parameters);
}
Json object_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_object()) return *found;
  throw InputError(fmt::format("options: '{}' must be an object", key));
}

// Empty where it is missing.
Json list_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return Json::array();
  if (found->is_array()) return *found;
  throw InputError(fmt::format("options: '{}' must be a list", key));
}

// What every reader relies on; a run's start checks the rest.
void require_at_least(std::string_view name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw InputError(fmt::format("options: {} is {}, must be at least {}", name, value, least));
}

Json to_object(const RunOptions& o) {
  Json groups = Json::array();
  for (const ParameterGroup& group : o.groups) {
    groups.push_back(
        {{"layers", group.layers},
         {"optimizer",
          choice_to_json(group.optimizer, find_optimizer(group.optimizer.name).parameters)}});
  }
  Json object = {
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
      {"eval_examples", o.eval_examples},
      {"statistics_every", o.measuring.statistics_every},
      {"histogram_every", o.measuring.histogram_every},
      {"sums_every", o.measuring.sums_every},
      {"checkpoint_every", o.checkpoint_every},
      {"seed", o.seed},
      {"seeds", o.seeds},
      {"nudge", o.nudge},
  };
  // Only where it is set: the hash of other runs is that of earlier versions.
  if (o.measuring.counts_between) object["counts_between"] = true;
  return object;
}

}  // namespace

std::string options_to_json(const RunOptions& options) {
  try {
    return to_object(options).dump();
  } catch (const Json::exception&) {
    throw InputError("options: a name is not UTF-8, as JSON must be",
                     "rename the model, data or policy file");
  }
}

RunOptions options_from_json(std::string_view json) {
  Json j;
  try {
    j = Json(parse_json(json));
  } catch (const InputError& error) {
    throw InputError(std::string("options: ") + error.what());
  }
  if (!j.is_object()) throw InputError("options: must be an object");
  RunOptions o;
  o.model = field<std::string>(j, "model");
  if (j.contains("sizes")) {  // files of version 1 lack them
    const Json sizes = object_in(j, "sizes");
    for (const auto& [name, size] : sizes.items()) {
      o.sizes[name] = value_of<double>(size, "sizes");
    }
  }
  o.data = field<std::string>(j, "data");
  o.lanes.clear();
  for (const Json& lane : list_in(j, "lanes")) {
    o.lanes.push_back(value_of<std::string>(lane, "lanes"));
  }
  o.steps = field<int64_t>(j, "steps");
  o.batch = field<int64_t>(j, "batch");
  o.optimizer = optimizer_from_json(object_in(j, "optimizer"));
  // Files of version 1 have none of these; the defaults are what those runs did.
  o.accumulate = field(j, "accumulate", o.accumulate);
  o.workers = field(j, "workers", o.workers);
  o.backward_per_loss = field<std::string>(j, "backward", "joint") == "per-loss";
  if (j.contains("schedule")) {
    const Json schedule = object_in(j, "schedule");
    o.schedule =
        choice_from_json(schedule, find_schedule(field<std::string>(schedule, "name")).parameters);
  }
  for (const Json& group : list_in(j, "groups")) {
    o.groups.push_back(
        {field<std::string>(group, "layers"), optimizer_from_json(object_in(group, "optimizer"))});
  }
  o.clip_norm = field(j, "clip_norm", o.clip_norm);
  const auto norm_type = j.find("clip_norm_type");
  if (norm_type != j.end()) {
    o.clip_norm_type = norm_type->is_string() ? std::numeric_limits<double>::infinity()
                                              : value_of<double>(*norm_type, "clip_norm_type");
  }
  o.clip_value = field(j, "clip_value", o.clip_value);
  o.clips_scaled = field(j, "clips_scaled", o.clips_scaled);
  o.loss_factor = field(j, "loss_factor", o.loss_factor);
  const auto globs = [&](const char* key) {
    const std::string text = field<std::string>(j, key, "");
    return text.empty() ? std::vector<std::string>{} : split(text, ',');
  };
  o.freeze = globs("freeze");
  o.eval_batch_norm = globs("eval_batch_norm");
  if (const auto eps = j.find("batch_norm_eps"); eps != j.end() && eps->is_number()) {
    o.batch_norm_eps = eps->get<double>();
  }
  o.rewrites = globs("rewrites");
  const std::string changes = field<std::string>(j, "loop_changes", "");
  if (!changes.empty()) o.loop_changes = parse_hyper_values("loop_changes", changes);
  o.capture_hash = field(j, "capture_hash", o.capture_hash);
  o.cycle = field(j, "cycle", o.cycle);
  for (const Json& step : list_in(j, "captured_order")) {
    o.captured_order.push_back(value_of<int64_t>(step, "captured_order"));
    require_at_least("captured_order", o.captured_order.back(), 0);
  }
  o.start_from = field(j, "start_from", o.start_from);
  o.start_hash = field(j, "start_hash", o.start_hash);
  o.eval_in_fp32 = field<std::string>(j, "eval_policy", "own") == kReferenceLane;
  o.mode = field<std::string>(j, "mode") == "synced" ? LaneMode::kSynced : LaneMode::kFree;
  o.decisions = field<std::string>(j, "decisions", "recorded") == "own" ? Decisions::kOwn
                                                                        : Decisions::kRecorded;
  o.eval_every = field<int64_t>(j, "eval_every");
  // Older runs evaluated all.
  o.eval_examples = field(j, "eval_examples", std::numeric_limits<int64_t>::max());
  o.measuring.statistics_every = field(j, "statistics_every", int64_t{1});  // older files have all
  o.measuring.counts_between = field(j, "counts_between", false);
  o.measuring.histogram_every = field<int64_t>(j, "histogram_every");
  o.measuring.sums_every = field(j, "sums_every", int64_t{0});  // older files sampled nothing
  o.checkpoint_every = field<int64_t>(j, "checkpoint_every");
  o.seed = field<uint64_t>(j, "seed");
  o.seeds = field(j, "seeds", int64_t{1});  // older files hold one
  o.nudge = field(j, "nudge", uint64_t{0});
  require_at_least("steps", o.steps, 1);
  require_at_least("batch", o.batch, 1);
  require_at_least("accumulate", o.accumulate, 1);
  require_at_least("workers", o.workers, 1);
  require_at_least("eval_every", o.eval_every, 0);
  require_at_least("eval_examples", o.eval_examples, 0);
  require_at_least("statistics_every", o.measuring.statistics_every, 0);
  require_at_least("histogram_every", o.measuring.histogram_every, 1);
  require_at_least("sums_every", o.measuring.sums_every, 0);
  require_at_least("checkpoint_every", o.checkpoint_every, 1);
  require_at_least("seeds", o.seeds, 1);
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

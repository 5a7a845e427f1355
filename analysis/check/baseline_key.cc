// See baseline_key.h.
#include "analysis/check/baseline_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "analysis/check/change_lines.h"
#include "analysis/pair/run_match.h"
#include "src/capture/capture.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "src/policy/twin_lane.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {
namespace {

constexpr std::string_view kThreads = "threads";  // no number depends on it

bool has_policy_of_its_own(const std::string& lane) {
  return lane != kCapturedLane && twin_number(parse_lane_name(lane).policy) == 0;
}

std::string short_hash(const std::string& text) {
  return fmt::format("{:08x}", static_cast<uint32_t>(fnv1a(text) >> 32));
}

std::string text_of(const LaneFacts& lane) {
  return lane.name + "\n" + lane.engine + "@" + lane.target + "\n" + lane.policy_text + "\n";
}

// "a", "a and b", "a, b and c".
std::string list_text(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  }
  return text;
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::vector<std::string> other_policies(const std::vector<LaneFacts>& before,
                                        const std::vector<LanePair>& pairs) {
  std::vector<std::string> names;
  for (const LanePair& pair : pairs) {
    if (pair.before < 0) continue;
    const std::string& name = before[static_cast<size_t>(pair.before)].name;
    const bool is_same = pair.is_pair() && pair.same_policy && pair.same_engine;
    if (!is_same && has_policy_of_its_own(name)) names.push_back(name);
  }
  return names;
}

// A lane that cannot run here has another policy than then.
std::vector<LaneFacts> replayed_lanes(const Baseline& baseline) {
  std::vector<LaneFacts> lanes;
  for (const LaneFacts& lane : baseline.run.lanes) {
    if (!has_policy_of_its_own(lane.name)) continue;
    try {
      const std::vector<LaneFacts> one = lanes_now({lane.name}, baseline.policy_texts);
      lanes.insert(lanes.end(), one.begin(), one.end());
    } catch (const InputError&) {
    }
  }
  return lanes;
}

}  // namespace

std::string baseline_key(const std::map<std::string, std::string>& environment,
                         const std::vector<LaneFacts>& lanes) {
  std::string around, policies;
  for (const auto& [name, value] : environment) {
    if (name != kThreads) around += name + "=" + value + "\n";
  }
  for (const LaneFacts& lane : lanes) {
    if (has_policy_of_its_own(lane.name)) policies += text_of(lane);
  }
  return short_hash(around) + "-" + short_hash(policies);
}

std::vector<LaneFacts> lanes_now(const std::vector<std::string>& names,
                                 const std::map<std::string, std::string>& policy_texts) {
  std::vector<LaneFacts> lanes;
  for (const std::string& name : names) {
    std::error_code error;
    const auto kept = policy_texts.find(name);
    const bool is_gone =
        kept != policy_texts.end() && !std::filesystem::exists(parse_lane_name(name).policy, error);
    const LaneDescription lane = describe_lane(name, is_gone ? &kept->second : nullptr);
    lanes.push_back({lane.name, lane.engine, lane.target, lane.policy.text});
  }
  return lanes;
}

BaselineFit fit_of(const Baseline& baseline, const CheckedModel& subject) {
  BaselineFit fit;
  const RunFacts &before = baseline.run, &now = subject.run;
  fit.is_other_model = before.options.capture_hash.empty() != now.options.capture_hash.empty() ||
                       file_name(before.options.model) != file_name(now.options.model);
  std::vector<LanePair> lanes;
  if (subject.has_run) lanes = match_lanes(before.lanes, now.lanes);
  if (now.parameters.empty()) {
    fit.is_comparable = !fit.is_other_model;
  } else {
    fit.is_comparable = std::ranges::equal(before.parameters, now.parameters, {},
                                           &ParameterFacts::name, &ParameterFacts::name) &&
                        (!subject.has_run || std::ranges::all_of(lanes, &LanePair::is_same_lane));
  }
  if (!fit.is_comparable) return fit;
  if (!subject.has_run) lanes = match_lanes(before.lanes, replayed_lanes(baseline));
  fit.policies = other_policies(before.lanes, lanes);
  for (size_t i = 0; i < now.parameters.size(); ++i) {
    if (before.parameters[i].shape == now.parameters[i].shape) continue;
    fit.settings.push_back("shape of " + now.parameters[i].name);
  }
  if (subject.has_run) {
    for (const SetupDifference& d : settings_of_loop(before, now)) fit.settings.push_back(d.name);
    if (before.options.seed != now.options.seed) fit.settings.push_back("seed");
  }
  for (const EnvironmentDifference& d :
       environment_differences(before.environment, now.environment)) {
    if (d.name != kThreads) fit.environment.push_back(d.name);
  }
  return fit;
}

std::string fit_note(const BaselineFit& fit, const std::string& folder, const std::string& name) {
  if (fit.is_exact()) return "";
  std::vector<std::string> parts;
  if (fit.is_other_model) parts.push_back("from another model or file");
  if (!fit.environment.empty()) parts.push_back("with another " + list_text(fit.environment));
  if (!fit.policies.empty()) {
    parts.push_back(fmt::format("with another policy of {} {}",
                                fit.policies.size() == 1 ? "lane" : "the lanes",
                                list_text(fit.policies)));
  }
  return fmt::format("Of the baselines in {}, {} fits best; it was recorded {}", folder, name,
                     join(parts, " and "));
}

}  // namespace lockstep

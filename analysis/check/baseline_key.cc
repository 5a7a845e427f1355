// See baseline_key.h.
#include "analysis/check/baseline_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "src/capture/capture.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "src/policy/twin_lane.h"
#include "src/record/run/options_json.h"
#include "src/train/lane_name.h"

namespace lockstep {
namespace {

constexpr std::string_view kThreads = "threads";  // no number depends on it

bool has_policy_of_its_own(const std::string& lane) {
  return lane != kCapturedLane && twin_number(parse_lane_name(lane).policy) == 0;
}

std::string short_hash(const std::string& text) {
  return fmt::format("{:08x}", static_cast<uint32_t>(fnv1a(text) >> 32));
}

std::string text_of(const LaneIdentity& lane) {
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

// Names of entries that differ or that one side lacks.
template <typename Pairs>
std::vector<std::string> differing(const Pairs& a, const Pairs& b) {
  const std::map<std::string, std::string> ours(a.begin(), a.end()), theirs(b.begin(), b.end());
  std::vector<std::string> names;
  for (const auto& [name, value] : ours) {
    const auto other = theirs.find(name);
    if (other == theirs.end() || other->second != value) names.push_back(name);
  }
  for (const auto& [name, value] : theirs) {
    if (!ours.contains(name)) names.push_back(name);
  }
  std::erase(names, kThreads);
  return names;
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// A lane's counterpart has its name or, renamed, its policy.
const LaneIdentity* find_lane(const std::vector<LaneIdentity>& lanes, const LaneIdentity& lane) {
  const auto by_name = std::ranges::find(lanes, lane.name, &LaneIdentity::name);
  if (by_name != lanes.end()) return &*by_name;
  const auto by_policy = std::ranges::find(lanes, lane.policy_text, &LaneIdentity::policy_text);
  return by_policy == lanes.end() ? nullptr : &*by_policy;
}

bool same_lanes(const std::vector<LaneIdentity>& a, const std::vector<LaneIdentity>& b) {
  return a.size() == b.size() && std::ranges::all_of(a, [&](const LaneIdentity& lane) {
           return find_lane(b, lane) != nullptr;
         });
}

std::vector<std::string> other_policies(const std::vector<LaneIdentity>& before,
                                        const std::vector<LaneIdentity>& now) {
  std::vector<std::string> names;
  for (const LaneIdentity& lane : before) {
    if (!has_policy_of_its_own(lane.name)) continue;
    const LaneIdentity* other = find_lane(now, lane);
    if (other == nullptr || other->policy_text != lane.policy_text ||
        other->engine != lane.engine || other->target != lane.target) {
      names.push_back(lane.name);
    }
  }
  return names;
}

// A lane that cannot run here has another policy than then.
std::vector<LaneIdentity> replayed_lanes(const Baseline& baseline) {
  std::vector<LaneIdentity> lanes;
  for (const LaneIdentity& lane : baseline.identity.lanes) {
    if (!has_policy_of_its_own(lane.name)) continue;
    try {
      const std::vector<LaneIdentity> one = lanes_now({lane.name}, baseline.policy_texts);
      lanes.insert(lanes.end(), one.begin(), one.end());
    } catch (const InputError&) {
    }
  }
  return lanes;
}

}  // namespace

std::string baseline_key(const std::map<std::string, std::string>& environment,
                         const std::vector<LaneIdentity>& lanes) {
  std::string around, policies;
  for (const auto& [name, value] : environment) {
    if (name != kThreads) around += name + "=" + value + "\n";
  }
  for (const LaneIdentity& lane : lanes) {
    if (has_policy_of_its_own(lane.name)) policies += text_of(lane);
  }
  return short_hash(around) + "-" + short_hash(policies);
}

std::vector<LaneIdentity> lanes_now(const std::vector<std::string>& names,
                                    const std::map<std::string, std::string>& policy_texts) {
  std::vector<LaneIdentity> lanes;
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

CheckedModel checked_model(const RunFile& run) {
  const ModelIdentity identity = identity_of(run);
  return {.model = run.options().model,
          .is_captured = !run.options().capture_hash.empty(),
          .parameters = identity.parameters,
          .has_run = true,
          .lanes = identity.lanes,
          .settings = identity.settings,
          .seed = identity.seed,
          .environment = run.environment()};
}

BaselineFit fit_of(const Baseline& baseline, const CheckedModel& subject) {
  BaselineFit fit;
  const RunOptions options = options_from_json(baseline.options_json);
  const bool is_captured = !options.capture_hash.empty();
  fit.is_other_model =
      is_captured != subject.is_captured || file_name(options.model) != file_name(subject.model);
  if (subject.parameters.empty()) {
    fit.is_comparable = !fit.is_other_model;
  } else {
    fit.is_comparable = std::ranges::equal(baseline.identity.parameters, subject.parameters, {},
                                           &ParameterIdentity::name, &ParameterIdentity::name) &&
                        (!subject.has_run || same_lanes(baseline.identity.lanes, subject.lanes));
  }
  if (!fit.is_comparable) return fit;
  fit.policies = other_policies(baseline.identity.lanes,
                                subject.has_run ? subject.lanes : replayed_lanes(baseline));
  for (size_t i = 0; i < subject.parameters.size(); ++i) {
    if (baseline.identity.parameters[i].shape == subject.parameters[i].shape) continue;
    fit.settings.push_back("shape of " + subject.parameters[i].name);
  }
  if (subject.has_run) {
    const std::vector<std::string> other = differing(baseline.identity.settings, subject.settings);
    fit.settings.insert(fit.settings.end(), other.begin(), other.end());
    if (baseline.identity.seed != subject.seed) fit.settings.push_back("seed");
  }
  fit.environment = differing(baseline.environment, subject.environment);
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

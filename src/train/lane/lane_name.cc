// See lane_name.h.
#include "src/train/lane/lane_name.h"

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/execute/engines.h"
#include "src/policy/find_policy.h"
#include "src/policy/hardware_policy.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

Policy twin_policy(const std::string& name) {
  Policy policy = find_policy(kReferenceLane);
  policy.name = name;
  policy.help = "the one-ulp twin: FP32 from weights moved by one ulp";
  policy.aliases.clear();
  return policy;
}

// Adds the file's path to a problem, which has only a line: a run lists problems of many lanes.
std::string with_path(const std::string& path, const std::string& problem) {
  if (!path.ends_with(".toml") || problem.find(path) != std::string::npos) return problem;
  return "policy '" + path + "': " + problem;
}

}  // namespace

// The target follows the last '@', unless that is part of a file name.
LaneName parse_lane_name(std::string_view text) {
  const size_t at = text.rfind('@');
  const bool has_target =
      at != std::string_view::npos && text.find_first_of("/.", at) == std::string_view::npos;
  LaneName name;
  name.policy = std::string(has_target ? text.substr(0, at) : text);
  if (has_target) name.target = std::string(text.substr(at + 1));
  if (name.policy.empty() || (has_target && name.target.empty())) {
    throw InputError("lane '" + std::string(text) + "': POLICY[:VERSION][@TARGET] required",
                     "e.g. 'tf32' or 'torch-autocast-fp16:2.12'");
  }
  return name;
}

LaneDescription describe_lane(std::string_view text, const std::string* policy_text) {
  if (printable(text) != text) {
    throw InputError("lane '" + printable(text) +
                         "': the name must be UTF-8 without control characters, because the run "
                         "file and its JSON hold it",
                     "rename the policy file");
  }
  const LaneName name = parse_lane_name(text);
  LaneDescription lane;
  lane.name = std::string(text);
  lane.target = name.target;
  lane.is_reference = text == kReferenceLane;
  ProblemList problems("lane '" + lane.name + "'");
  const Hardware* hardware = find_hardware(name.target);
  try {
    const Engine& engine = find_engine(name.target);
    lane.engine = engine.name;
    if (engine.hardware != nullptr) hardware = engine.hardware();
  } catch (const InputError& error) {
    for (const std::string& problem : error.problems()) problems.add(problem);
  }
  try {
    if (name.policy == kTruthLane) {
      lane.policy = truth_policy();
    } else if (twin_number(name.policy) > 0) {
      lane.policy = twin_policy(name.policy);
    } else if (policy_text != nullptr) {
      lane.policy = parse_policy(*policy_text, name.policy);
    } else {
      lane.policy = find_policy(name.policy);
    }
  } catch (const InputError& error) {
    for (const std::string& problem : error.problems()) {
      problems.add(with_path(name.policy, problem));
    }
  }
  problems.throw_if_any();
  if (lane.policy.cuda != LibraryRules{} && !find_engine(lane.engine).has_library) {
    lane.policy.notes.push_back("[cuda] has no effect without '@cuda'");
  }
  if (hardware != nullptr) {
    // The lanes with fixed names have arithmetic that no low-precision unit has.
    const std::string& policy = lane.policy.name;
    if (policy == kReferenceLane || policy == kTruthLane || twin_number(policy) > 0) {
      problems.add("'" + policy + "' runs on no hardware's low-precision units",
                   "leave '@" + name.target + "' out");
      problems.throw_if_any();
    }
    apply_hardware(lane.policy, *hardware);
  }
  return lane;
}

}  // namespace lockstep

// Finds the baseline of a folder that fits a run best. Baselines of one model are next to each
// other, one for each environment (CPU, compiler, flags, libraries) and set of policies. Knows
// nothing of files.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "analysis/check/baseline.h"

namespace lockstep {

// "0a1b2c3d-4e5f6071": a hash of the environment, and one of the lanes' names, engines and
// policies. It leaves out the number of threads, twins and the captured lane: no number depends on
// them, or they come with a capture.
std::string baseline_key(const std::map<std::string, std::string>& environment,
                         const std::vector<LaneFacts>& lanes);

// Lanes as they would run now, with today's presets and policy files; `policy_texts`: of files that
// have gone. Throws: InputError: unknown policy, target not served.
std::vector<LaneFacts> lanes_now(const std::vector<std::string>& names,
                                 const std::map<std::string, std::string>& policy_texts);

// What is known of a subject before it is judged. Of a built-in model that is its name; of a
// capture also the parameters; lanes and settings of a run file only: a replay takes the
// baseline's.
struct CheckedModel {
  RunFacts run;
  bool has_run = false;
};

// What a baseline has in common with the subject; the fewer differences, the better.
struct BaselineFit {
  bool is_comparable = false;  // the same parameters and, of a run file, lanes
  bool is_other_model = false;
  std::vector<std::string> policies, settings, environment;  // names of those that differ
  // Other settings are listed with what changed.
  bool is_exact() const { return !is_other_model && policies.empty() && environment.empty(); }
  // A run is judged by its own model's baseline first, then by its policies: those change numbers
  // most, another environment least.
  auto rank() const {
    return std::tuple(is_other_model, policies.size(), settings.size(), environment.size());
  }
};
BaselineFit fit_of(const Baseline& baseline, const CheckedModel& subject);

// Empty for an exact fit; else a sentence without full stop: "Of the baselines in baselines,
// lenet.json fits best; it was recorded with another cpu and compiler".
std::string fit_note(const BaselineFit& fit, const std::string& folder, const std::string& name);

}  // namespace lockstep

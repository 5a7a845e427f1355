// See check_pair.h.
#include "src/cli/check_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "analysis/check/judge.h"
#include "analysis/exact/exact.h"
#include "analysis/exact/exact_rules.h"
#include "analysis/exact/first_value.h"
#include "reports/check/exact_text.h"
#include "src/cli/check_subject.h"
#include "src/cli/run_program.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/core/error.h"
#include "src/core/npy.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/parts_index.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (const std::string& word : split(text, ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

// One replay by another program, to a file in the folder. `more`: options of replay.
std::string replay_by(const std::string& program, const PairRequest& request, EnsembleRuns& runs,
                      const std::string& name, int64_t nudge,
                      const std::vector<std::string>& more = {},
                      ShowErrors errors = ShowErrors::kYes) {
  const std::string path = runs.path_of(name);
  std::vector<std::string> argv = {program, "replay", request.subject};
  std::vector<std::string> words = words_of(request.replay);
  const auto has = [&](std::string_view option) {
    return std::ranges::any_of(words, [&](const std::string& word) {
      return word == option || word.starts_with(std::string(option) + "=");
    });
  };
  const auto add = [&](std::string_view option, std::string value) {
    if (has(option)) return;
    argv.emplace_back(option);
    argv.push_back(std::move(value));
  };
  add(option_name(&RunOptions::lanes), kCheckedLanes);
  if (kind_of_subject(request.subject) == SubjectKind::kModel) {
    add(option_name(&RunOptions::steps), std::to_string(kCheckedSteps));
  }
  add("--twins", "0");
  argv.insert(argv.end(), words.begin(), words.end());
  argv.insert(argv.end(), more.begin(), more.end());
  if (nudge > 0) {
    argv.insert(argv.end(), {std::string(option_name(&RunOptions::nudge)), std::to_string(nudge)});
  }
  argv.insert(argv.end(), {"--quiet", "--overwrite", "-o", path});
  const int code = run_program(argv, errors);
  if (code != 0) {
    throw InputError(fmt::format("{}: exit code {}", join(argv, " "), code),
                     nudge > 0 ? "a Lockstep without --nudge cannot measure its noise: "
                                 "`check B.h5 --baseline A.h5 --exact` compares bits"
                               : "run it by hand");
  }
  return path;
}

// The values of one site, from another program.
std::vector<Tensor> values_by(const std::string& program, const PairRequest& request,
                              EnsembleRuns& runs, const RunFile& run, const SitePlace& place) {
  const std::string npy = runs.path_of("values") + ".npy";
  std::string path;
  try {
    path = replay_by(program, request, runs, "values", 0,
                     {"--save-values", npy, "--at",
                      fmt::format("{} {} #{}", place.step, place.lane, place.site)},
                     ShowErrors::kNo);
  } catch (const InputError&) {
    throw InputError(
        fmt::format("`replay --save-values` failed in {}; older versions lack it", program));
  }
  Tensor values = tensor_from_npy(read_text_file(npy), npy);
  EnsembleRuns::remove_run(path);
  const Shape& shape = run.sites().sites.at(static_cast<size_t>(place.site)).shape;
  // Several passes come along an axis of their own.
  if (values.shape().size() != shape.size() + 1) return {std::move(values)};
  std::vector<Tensor> passes;
  const int64_t count = values.shape().front();
  for (int64_t pass = 0; pass < count; ++pass) {
    Tensor& one = passes.emplace_back(Shape(values.shape().begin() + 1, values.shape().end()),
                                      values.container());
    std::memcpy(one.raw(),
                static_cast<const char*>(values.raw()) + static_cast<size_t>(pass) * one.bytes(),
                one.bytes());
  }
  return passes;
}

// Two runs to compare, and how programs that are not this one replay them.
struct Pair {
  std::string a, b;
  ReplayElsewhere replay_a = {}, replay_b = {};
};

// Where the bits of two runs of one set-up first differ; "" where they do not or cannot be
// compared.
std::string first_difference(const Pair& pair, const RunFile& run, const RunFile& baseline) {
  ExactResult exact = compare_exactly(run, baseline, {.strict = true});
  if (!exact.has_first) return "";
  find_first_value(exact, run, baseline, catch_stop_signals(), pair.replay_b, pair.replay_a);
  const Difference& d = exact.first;
  const std::string element = first_value_text(exact, "in B", "in A");
  return fmt::format("{}lane {}{}{}: {}{}", d.step >= 0 ? fmt::format("step {}, ", d.step) : "",
                     d.lane, d.subject.empty() ? "" : ", ", d.subject,
                     compares_hashes(d.rule)
                         ? std::string("other bits")
                         : fmt::format("{} {}, in A {}", d.rule, d.run, d.baseline),
                     element.empty() ? "" : ". " + element);
}

CheckResult judge_pair(const Pair& pair, const Baseline& baseline, const CheckOptions& options) {
  const RunFile run(pair.b), before(pair.a);
  CheckResult result = judge_run(run, baseline, options);
  result.first_difference = first_difference(pair, run, before);
  return result;
}

CheckResult check_programs(const PairRequest& request, EnsembleRuns& runs,
                           const CheckOptions& options) {
  if (request.subject.empty()) {
    throw InputError("--a and --b are programs: what should they replay?",
                     "name a built-in model or a capture: check --a OLD --b NEW lenet");
  }
  const std::string a = replay_by(request.a, request, runs, "a", 0);
  const std::string b = replay_by(request.b, request, runs, "b", 0);
  std::vector<RunSummary> ulps = {summarize(RunFile(a))};
  for (int64_t k = 1; k <= request.members; ++k) {
    const std::string path = replay_by(request.a, request, runs, "member", k);
    ulps.push_back(summarize(RunFile(path)));
    EnsembleRuns::remove_run(path);
  }
  const Baseline baseline = make_baseline(RunFile(a), ulps, {});
  const auto by = [&](const std::string& program) {
    return [&, program](const RunFile& run, const SitePlace& place) {
      return values_by(program, request, runs, run, place);
    };
  };
  CheckResult result = judge_pair({a, b, by(request.a), by(request.b)}, baseline, options);
  EnsembleRuns::remove_run(a);
  EnsembleRuns::remove_run(b);
  return result;
}

CheckResult check_captures(const PairRequest& request, EnsembleRuns& runs,
                           const CheckOptions& options) {
  EnsembleRequest ensemble;
  ensemble.members = request.members;
  RunOptions& wanted = ensemble.options;
  wanted.model = request.a;
  wanted.capture_hash = hash_of_captured(request.a);
  wanted.steps = 0;  // all of them
  wanted.held_out = false;
  wanted.lanes = split(kCheckedLanes, ',');
  const std::string a = runs.run(wanted, "a");
  wanted.steps = RunFile(a).options().steps;
  const Baseline baseline = runs.record_around(a, ensemble);
  const std::string b = runs.run(options_for(baseline, request.b, SubjectKind::kCapture), "b");
  CheckResult result = judge_pair({a, b}, baseline, options);
  EnsembleRuns::remove_run(a);
  EnsembleRuns::remove_run(b);
  return result;
}

CheckResult check_run_files(const PairRequest& request, EnsembleRuns& runs,
                            const CheckOptions& options) {
  EnsembleRequest ensemble;
  ensemble.options = RunFile(request.a).options();
  ensemble.members = request.members;
  return judge_pair({request.a, request.b}, runs.record_around(request.a, ensemble), options);
}

}  // namespace

CheckResult check_pair(const PairRequest& request, EnsembleRuns& runs,
                       const CheckOptions& options) {
  CheckResult result;
  if (is_program(request.a) && is_program(request.b)) {
    result = check_programs(request, runs, options);
  } else {
    const SubjectKind a = kind_of_subject(request.a), b = kind_of_subject(request.b);
    if (a != b || a == SubjectKind::kModel) {
      throw InputError(
          fmt::format("--a {} --b {}: two programs, two captures or two run files "
                      "required",
                      request.a, request.b));
    }
    if (!request.subject.empty()) {
      throw InputError(fmt::format("{}: only builds of Lockstep, as --a and --b, can replay it",
                                   request.subject),
                       "leave it out");
    }
    result = a == SubjectKind::kCapture ? check_captures(request, runs, options)
                                        : check_run_files(request, runs, options);
  }
  result.run = request.b;
  result.baseline = request.a;
  return result;
}

}  // namespace lockstep

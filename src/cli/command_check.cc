// lockstep check: judges whether a run is as good as its baseline. The exit code is the verdict.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "analysis/check/ensemble_runs.h"
#include "analysis/check/judge.h"
#include "analysis/exact/exact.h"
#include "analysis/exact/first_value.h"
#include "reports/check/exact_text.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/check_outputs.h"
#include "src/cli/check_pair.h"
#include "src/cli/check_subject.h"
#include "src/cli/command.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/verify_run.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/policy/parse/toml_text.h"
#include "src/record/run/run_lock.h"

namespace lockstep {
namespace {

constexpr int64_t kMembersAroundRun = 8;  // of a baseline that is a run file

struct CheckArgs {
  std::string subject, baseline, rules;
  PairRequest pair;
  bool exact = false, alpha_given = false;
  ExactOptions exact_options;
  CheckOptions options;
  CheckOutputs outputs;
};

// The command line's --alpha overrides the rules'.
CheckOptions options_of(const CheckArgs& args) {
  CheckOptions options = args.options;
  options.today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  if (!args.rules.empty()) {
    options.rules = rules_from_toml(read_text_file(args.rules, kMostTomlBytes), args.rules);
  }
  if (!args.alpha_given) options.alpha = options.rules.alpha.value_or(options.alpha);
  return options;
}

int run_exact(const CheckArgs& args) {
  const RunFile run(args.subject), baseline(args.baseline);
  note_missing_checksums(run);
  note_missing_checksums(baseline);
  ExactResult result = compare_exactly(run, baseline, args.exact_options);
  find_first_value(result, run, baseline, catch_stop_signals());
  print_text(exact_text(result, run.path(), baseline.path(), args.exact_options));
  switch (result.verdict) {
    case ExactVerdict::kPass:
      return kExitFine;
    case ExactVerdict::kRegression:
      return kExitRegression;
    case ExactVerdict::kIncomplete:
    case ExactVerdict::kNothingComparable:
      break;
  }
  return kExitInconclusive;
}

constexpr std::string_view kScratchName = "lockstep-check.";

// Folders of this user's checks that were killed: no program holds their locks.
void remove_left_folders(const std::filesystem::path& where) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(where, error), end; !error && at != end;
       at.increment(error)) {
    const std::string path = at->path().string();
    if (!at->path().filename().string().starts_with(kScratchName)) continue;
    struct stat status = {};
    const bool is_own =
        lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
    if (!is_own || is_being_written(path)) continue;
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    std::filesystem::remove(path + ".lock", ignored);
  }
}

// "lockstep-check.1a2b3c" in the system's folder for such.
std::string scratch_folder() {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) folder = ".";  // where the run files of a replay then are
  remove_left_folders(folder);
  // Made here and now: a folder that is there already may be another user's trap.
  std::string name = (folder / (std::string(kScratchName) + "XXXXXX")).string();
  if (mkdtemp(name.data()) == nullptr) {
    throw InputError(fmt::format("{}: cannot be made: {}", name, std::strerror(errno)));
  }
  return name;
}

// A baseline file, or limits measured now around a run file.
Baseline baseline_of(const std::string& path, EnsembleRuns& runs, std::string& note) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw InputError(fmt::format("--baseline {}: no such file", path),
                     "`lockstep baseline record` makes one");
  }
  if (kind_of_subject(path) != SubjectKind::kRunFile) return read_baseline(path, &note);
  EnsembleRequest request;
  request.options = RunFile(path).options();
  request.members = kMembersAroundRun;
  fmt::print(stderr,
             "{} is a run file, without limits: measuring them in {} runs from weights "
             "moved by one ulp. `lockstep baseline record` keeps them.\n",
             printable(path), kMembersAroundRun);
  Baseline baseline = runs.record_around(path, request);
  baseline.path = path;
  return baseline;
}

CheckResult nothing_comparable(const CheckArgs& args, const CheckOptions& options,
                               std::vector<std::string> candidates) {
  CheckResult result;
  result.run = args.subject;
  result.baseline = args.baseline;
  result.alpha = options.alpha;
  result.why_inconclusive = {
      fmt::format("none of the baselines in {} is of this model and these lanes", args.baseline)};
  result.remarks = std::move(candidates);
  return result;
}

CheckResult check_subject(const CheckArgs& args, const CheckOptions& options, EnsembleRuns& runs) {
  const SubjectKind kind = kind_of_subject(args.subject);
  std::error_code error;
  FoundBaseline found;
  if (std::filesystem::is_directory(args.baseline, error)) {
    found = find_baseline(args.baseline, checked_model_of(args.subject, kind));
    if (!found.baseline) return nothing_comparable(args, options, found.candidates);
  } else {
    found.baseline = baseline_of(args.baseline, runs, found.note);
  }
  const Baseline& baseline = *found.baseline;
  const bool is_run = kind == SubjectKind::kRunFile;
  const std::string path =
      is_run ? args.subject : runs.run(options_for(baseline, args.subject, kind), "checked");
  const RunFile run(path);
  note_missing_checksums(run);
  CheckResult result = judge_run(run, baseline, options);
  if (!is_run) EnsembleRuns::remove_run(path);
  result.run = args.subject;
  result.baseline_note = found.note;
  return result;
}

void require_sides(const CheckArgs& args, ProblemList& problems) {
  const bool is_pair = !args.pair.a.empty() || !args.pair.b.empty();
  if (is_pair && (args.pair.a.empty() || args.pair.b.empty())) {
    problems.add("--a and --b: both required", "check --a BEFORE --b AFTER [MODEL]");
  }
  if (is_pair && !args.baseline.empty()) {
    problems.add("--baseline: not with --a and --b, where A is the baseline", "leave it out");
  }
  if (is_pair) return;
  if (args.subject.empty()) {
    problems.add("SUBJECT: missing", "a run file, a capture or a built-in model");
  }
  if (args.baseline.empty()) {
    problems.add("--baseline: missing", "a file of `lockstep baseline record`, or --a and --b");
  }
}

// A CI that shows no log still shows why nothing was judged. The message itself goes to standard
// error in main.cc.
void write_error_outputs(const CheckArgs& args, const std::vector<std::string>& problems) {
  const bool is_pair = !args.pair.a.empty();
  CheckResult result;
  result.verdict = CheckVerdict::kError;
  result.run = is_pair ? args.pair.b : args.subject;
  result.baseline = is_pair ? args.pair.a : args.baseline;
  result.alpha = args.options.alpha;
  result.problems = problems;
  try {
    write_check_outputs(args.outputs, result);
  } catch (const InputError& error) {
    fmt::print(stderr, "lockstep: {}\n", printable_lines(error.what()));
  }
}

int judge_runs(const CheckArgs& args, EnsembleRuns& runs) {
  try {
    const CheckOptions options = options_of(args);
    const CheckResult result = args.pair.a.empty() ? check_subject(args, options, runs)
                                                   : check_pair(args.pair, runs, options);
    write_check_outputs(args.outputs, result);
    return exit_code_of(result.verdict);
  } catch (const InputError& error) {
    write_error_outputs(args, error.lines());
    throw;
  } catch (const std::exception&) {
    write_error_outputs(args, {"internal error; standard error says more"});
    throw;
  }
}

int run_check(const CheckArgs& args) {
  if (!(args.options.alpha > 0 && args.options.alpha < 1)) {
    throw InputError(fmt::format("--alpha {}: 0 < X < 1 required", args.options.alpha));
  }
  const std::string folder = scratch_folder();
  const std::shared_ptr<RunLock> in_use = lock_run(folder);
  EnsembleRuns runs(folder, catch_stop_signals(), nullptr);
  try {
    return judge_runs(args, runs);
  } catch (const EnsembleStopped&) {
    return kExitSignalBase + stop_signal();
  }
}

}  // namespace

std::function<int()> declare_check(CLI::App& app) {
  auto args = std::make_shared<CheckArgs>();
  app.add_option("SUBJECT", args->subject,
                 "a run file; or a capture or a built-in model, which is replayed with the "
                 "baseline's options")
      ->type_name("");
  app.add_option("--baseline", args->baseline,
                 "a file of `lockstep baseline record`, a folder of such files (the best fit is "
                 "taken), or a run file "
                 "accepted as good")
      ->type_name("FILE");
  app.add_option("--a", args->pair.a,
                 "before: a build of Lockstep (with SUBJECT), a capture or a run file")
      ->type_name("FILE");
  app.add_option("--b", args->pair.b, "after: the same kind of file")->type_name("FILE");
  app.add_option("--replay", args->pair.replay,
                 "for builds: options of `lockstep replay`, quoted as one argument")
      ->type_name("\"OPTIONS\"");
  const ArgumentChecks checks("check");
  CLI::Option* alpha =
      app.add_option("--alpha", args->options.alpha,
                     "how often a run as good as the baseline's may fail: for all numbers together")
          ->type_name("X")
          ->capture_default_str();
  checks.number(alpha);
  app.add_option("--rules", args->rules,
                 "limits, ignored alarms and required metrics (docs/check-rules.md)")
      ->type_name("FILE");
  app.add_flag("--exact", args->exact,
               "compare two run files number by number: bits, counts and histograms must be equal");
  app.add_flag("--strict", args->exact_options.strict,
               "with --exact: sums and losses must have equal bits, too");
  checks.number(app.add_option("--rel-tol", args->exact_options.rel_tol,
                               "with --exact: relative tolerance of sums and losses [2 gamma_n: "
                               "what another summation order can change]")
                    ->type_name("X"));
  CLI::Option* strict = app.get_option("--strict");
  CLI::Option* rel_tol = app.get_option("--rel-tol");
  declare_check_outputs(app, args->outputs);
  app.footer(
      "Limits come from the baseline's ensemble: runs from weights moved by one ulp (same seed) "
      "or\n"
      "from other seeds. Exit codes: 0 identical, within noise, or improved; 1 a regression;\n"
      "2 usage or file error; 3 incomplete, or nothing comparable.");
  return [args, checks, alpha, strict, rel_tol] {
    args->alpha_given = alpha->count() > 0;
    for (const CLI::Option* option : {strict, rel_tol}) {
      if (option->count() == 0 || args->exact) continue;
      checks.problems().add(option->get_name() + ": only with --exact",
                            "limits otherwise come from the baseline's ensemble");
    }
    if (args->exact && !args->rules.empty()) {
      checks.problems().add("--rules and --exact: --exact compares numbers, and has no limits");
    }
    require_sides(*args, checks.problems());
    check_outputs(args->outputs,
                  {{"SUBJECT", args->subject},
                   {"--baseline", args->baseline},
                   {"--rules", args->rules},
                   {"--a", args->pair.a},
                   {"--b", args->pair.b}},
                  args->exact, checks.problems());
    checks.problems().throw_if_any();
    args->pair.subject = args->subject;
    args->pair.members = kMembersAroundRun;
    if (!(args->exact_options.rel_tol >= 0 && args->exact_options.rel_tol < 1)) {
      throw InputError(
          fmt::format("--rel-tol {}: 0 <= X < 1 required", args->exact_options.rel_tol));
    }
    if (!args->exact) return run_check(*args);
    return run_exact(*args);
  };
}

}  // namespace lockstep

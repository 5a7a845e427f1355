// lockstep baseline: records what a run is when it is good, and how far noise alone takes it.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "analysis/check/baseline.h"
#include "analysis/check/baseline_change.h"
#include "analysis/check/baseline_key.h"
#include "analysis/check/change_lines.h"
#include "analysis/check/check_result.h"
#include "analysis/check/ensemble_runs.h"
#include "reports/check/baseline_text.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/cli/arguments/replay_arguments.h"
#include "src/cli/check_subject.h"
#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/terminal/progress.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/counted.h"
#include "src/core/parallel.h"
#include "src/core/sealed_text.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/parts_index.h"
#include "src/record/run/environment.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

constexpr int64_t kDefaultMembers = 12;
constexpr uint64_t kMostMembers = 1000;

struct RecordArgs : ReplayArgs {
  int64_t members = kDefaultMembers;
  std::string captures, reason;
};

std::string size_text(size_t bytes) {
  constexpr double kKilo = 1000;
  return fmt::format("{:.0f} kB", static_cast<double>(bytes) / kKilo);
}

void warn_of_few_runs(const Baseline& baseline) {
  for (const Draw draw : {Draw::kSame, Draw::kOther}) {
    const std::string few = few_runs_text(draw, baseline.ensemble(draw).runs);
    if (!few.empty()) fmt::print(stderr, "Warning: {}.\n", printable(few));
  }
}

// --overwrite replaces the numbers of a baseline, not its history.
void keep_history(const std::string& path, Baseline& baseline) {
  std::vector<BaselineEntry> history = read_baseline(path).history;
  history.insert(history.end(), baseline.history.begin(), baseline.history.end());
  baseline.history = std::move(history);
}

// In a folder, a baseline is named after its environment and policies, so that those of other
// machines can be next to it.
std::string path_in(const std::string& folder, const RunOptions& options) {
  const auto lanes = lanes_now(options.lanes, options.policy_texts);  // a lane may open the GPU
  const std::string key = baseline_key(describe_environment(), lanes);
  const std::string name = fmt::format("{}.{}.baseline.json", stem_of(options.model), key);
  return (std::filesystem::path(folder) / name).string();
}

std::string path_of(const RecordArgs& args) {
  if (args.output.empty()) return stem_of(args.options.model) + ".baseline.json";
  std::error_code error;
  const bool is_folder =
      args.output.ends_with('/') || std::filesystem::is_directory(args.output, error);
  return is_folder ? path_in(args.output, args.options) : args.output;
}

void refuse_existing(const std::string& path, const RecordArgs& args, ProblemList& problems) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  if (!args.overwrite) {
    problems.add(fmt::format("{}: exists", path),
                 "`lockstep baseline propose` changes a baseline with a reason; --overwrite "
                 "replaces it");
  } else if (args.reason.empty()) {
    problems.add("--reason: missing", "--overwrite replaces an accepted baseline: say why");
  }
  if (args.overwrite) collect_problems(problems, [&] { read_baseline(path); });
}

int record(RecordArgs& args, const ReplayOptions& options, ProblemList& problems) {
  read_replay_options(args, options, problems);
  std::string path;
  collect_problems(problems, [&] { path = path_of(args); });
  const size_t others = problems.count();
  check_output(path, Replace::kText, "", problems);
  const bool is_writable = problems.count() == others;
  if (is_writable) refuse_existing(path, args, problems);
  if (args.options.seeds == 2) {
    const std::string_view seeds = option_name(&RunOptions::seeds);
    problems.add(fmt::format("{} 2: limits need at least 3 runs", seeds),
                 fmt::format("{} 10", seeds));
  }
  if (args.options.model.empty()) {
    problems.add("MODEL: missing", "see `lockstep list models`, or name a capture file");
  }
  EnsembleRequest request;
  request.members = args.members;
  request.captures = args.captures.empty() ? std::vector<std::string>{} : split(args.captures, ',');
  const bool captured = is_capture(args.options.model);
  if (!captured && !request.captures.empty()) {
    problems.add("--other-captures: only with a capture", "a built-in model has --seeds");
  }
  CommandFiles files;
  files.inputs_of(args.options);
  for (const std::string& capture : request.captures) files.input("--other-captures", capture);
  files.output("-o", path);
  files.check(problems);
  problems.throw_if_any();
  if (captured) {
    args.options.capture_hash = hash_of_captured(args.options.model);
  }
  // --seeds N: so many other seeds, each in a run of its own.
  request.seeds = captured ? 0 : args.options.seeds - 1;
  args.options.seeds = 1;
  args.options.held_out = false;
  request.options = args.options;
  if (args.output.ends_with('/')) make_output_folder(args.output);
  const auto watch = [&](int64_t number, int64_t all) -> std::unique_ptr<Observer> {
    if (args.quiet) return nullptr;
    return std::make_unique<Progress>(0, args.options.steps,
                                      fmt::format("run {}/{}", number + 1, all));
  };
  try {
    EnsembleRuns runs(path + ".runs", catch_stop_signals(), watch);
    runs.prepare();
    // Another program may have recorded it since; none can now, under the lock of its runs.
    refuse_existing(path, args, problems);
    problems.throw_if_any();
    Baseline baseline = runs.record(request);
    const std::string broke = why_reference_broke(runs.recorded());
    if (!broke.empty()) {
      print_note("no baseline was written: " + broke);
      return kExitRegression;
    }
    baseline.history.back().lockstep_version = LOCKSTEP_VERSION;
    if (!args.reason.empty()) baseline.history.back().reason = args.reason;
    std::error_code error;
    if (std::filesystem::exists(path, error)) keep_history(path, baseline);
    const std::string text = to_json(baseline);
    write_text_file_atomically(path, text);
    warn_of_few_runs(baseline);
    if (!args.quiet) {
      fmt::print(
          "Wrote {} ({}): {} from weights moved by one ulp{}. Next:\n"
          "  lockstep check {} --baseline {}\n",
          printable(path), size_text(text.size()),
          counted(static_cast<uint64_t>(request.members + 1), "run"),
          baseline.ensemble(Draw::kOther).runs == 0
              ? ""
              : fmt::format(", {} from other seeds", baseline.ensemble(Draw::kOther).runs),
          shell_path(args.options.model), shell_quoted(path));
    }
  } catch (const EnsembleStopped&) {
    fmt::print(stderr, "Stopped; no baseline was written.\n");
    return kExitSignalBase + stop_signal();
  }
  return kExitFine;
}

std::function<int()> declare_record(CLI::App& app) {
  auto args = std::make_shared<RecordArgs>();
  args->options.steps = kCheckedSteps;
  args->options.lanes = split(kCheckedLanes, ',');
  args->twins = 0;
  const ArgumentChecks checks("baseline record");
  const ReplayOptions options = declare_replay_options(app, args, checks);
  app.get_option("--output")
      ->description(
          "the baseline; FOLDER/ names it after environment and policies "
          "[NAME.baseline.json]")
      ->type_name("FILE");
  app.get_option("--overwrite")->description("replace the numbers of a baseline that exists");
  checks.whole(app.add_option("--members", args->members,
                              "runs from weights moved by one ulp: the limits for the same seed")
                   ->type_name("N")
                   ->capture_default_str()
                   ->group("The ensemble"),
               2, kMostMembers);
  app.add_option("--other-captures", args->captures,
                 "captures of the same loop from other seeds: the limits for other seeds")
      ->type_name("FILE,...")
      ->group("The ensemble");
  app.add_option("--reason", args->reason, "why these numbers are right; kept in the history")
      ->type_name("TEXT")
      ->group("The ensemble");
  for (const auto& [row, option] : options.of_run) {
    if (!row->no_baseline.empty()) option->group("");  // not in --help
  }
  options.resume->group("");
  app.get_option(std::string(option_name(&RunOptions::seeds)))
      ->description(
          "the run and N - 1 more from the next seeds: the limits for other seeds; 1: none");
  app.get_option("--quiet")->description("no progress");
  app.footer(
      "Records MODEL once, then runs it again from weights moved by one ulp (--members), and, if "
      "asked,\nfrom other seeds (--seeds, --other-captures). How far these runs lie apart gives "
      "the "
      "limits.\nExample:\n  lockstep baseline record lenet --steps 20 -o lenet.baseline.json\n"
      "  lockstep check lenet --baseline lenet.baseline.json");
  return [args, checks, options] {
    // By their rows' names: CLI11 gives a hidden option none.
    const auto refuse = [&](const CLI::Option* option, std::string_view name,
                            std::string_view why) {
      if (option->count() == 0 || why.empty()) return;
      checks.problems().add(fmt::format("{}: {}", name, why), "leave it out");
    };
    for (const auto& [row, option] : options.of_run) {
      refuse(option, row->option, row->no_baseline);
    }
    refuse(options.resume, "--resume", "a baseline is recorded as a whole");
    if (args->threads != 0) set_thread_count(args->threads);
    return record(*args, options, checks.problems());
  };
}

struct ProposeArgs {
  std::string baseline, subject, captures;
  bool quiet = false;
};

std::string proposal_of(const std::string& baseline) {
  return baseline + ".proposed";
}

int propose(const ProposeArgs& args) {
  const Baseline before = read_baseline(args.baseline);
  EnsembleRequest request;
  const std::string subject = args.subject.empty() ? before.run.options.model : args.subject;
  const SubjectKind kind = kind_of_subject(subject);
  if (kind == SubjectKind::kRunFile) {
    throw InputError(fmt::format("{}: a run file; a proposal is an ensemble of new runs", subject),
                     "name the model or the capture");
  }
  request.options = options_for(before, subject, kind);
  request.members = std::max<int64_t>(before.ensemble(Draw::kSame).runs - 1, 1);
  if (kind == SubjectKind::kModel) {
    request.seeds = std::max<int64_t>(before.ensemble(Draw::kOther).runs - 1, 0);
  }
  if (!args.captures.empty()) request.captures = split(args.captures, ',');
  CommandFiles files;
  files.inputs_of(request.options);
  files.input("BASELINE", args.baseline);
  for (const std::string& capture : request.captures) files.input("--other-captures", capture);
  files.output("the proposal", proposal_of(args.baseline));
  ProblemList clashes("baseline propose");
  files.check(clashes);
  clashes.throw_if_any();
  if (kind == SubjectKind::kCapture && before.ensemble(Draw::kOther).runs > 0 &&
      request.captures.empty()) {
    throw InputError("--other-captures: missing; the baseline has limits from other captures",
                     "captures of the same loop from other seeds, of the code as it is now");
  }
  const auto watch = [&](int64_t number, int64_t all) -> std::unique_ptr<Observer> {
    if (args.quiet) return nullptr;
    return std::make_unique<Progress>(0, request.options.steps,
                                      fmt::format("run {}/{}", number + 1, all));
  };
  try {
    EnsembleRuns runs(args.baseline + ".runs", catch_stop_signals(), watch);
    Baseline proposed = runs.record(request);
    std::vector<std::string> reasons = why_no_baseline(before, runs.recorded());
    const ChangeLines lines =
        change_lines(before.run, proposed.run, match_runs(before.run, proposed.run));
    if (!lines.no_match.empty()) {
      reasons.push_back("another model (" + lines.no_match.front() +
                        "); `lockstep baseline record` makes a baseline of its own");
    }
    if (!reasons.empty()) {
      print_note("not proposed: " + join(reasons, "; "));
      return kExitRegression;
    }
    proposed.history.back().lockstep_version = LOCKSTEP_VERSION;
    proposed.proposed_for = text_hash(read_text_file(args.baseline));
    write_text_file_atomically(proposal_of(args.baseline), to_json(proposed));
    print_text(diff_text(compare_baselines(before, proposed, CheckOptions().alpha)));
    fmt::print("\nWrote {}. To accept it:\n  lockstep baseline approve {} --reason \"...\"\n",
               printable(proposal_of(args.baseline)), shell_path(args.baseline));
  } catch (const EnsembleStopped&) {
    fmt::print(stderr, "Stopped; nothing was proposed.\n");
    return kExitSignalBase + stop_signal();
  }
  return kExitFine;
}

std::function<int()> declare_propose(CLI::App& app) {
  auto args = std::make_shared<ProposeArgs>();
  app.add_option("BASELINE", args->baseline, "a baseline file")->type_name("")->required();
  app.add_option("SUBJECT", args->subject, "the model or capture to record [the baseline's own]")
      ->type_name("");
  app.add_option("--other-captures", args->captures,
                 "captures of the same loop from other seeds, if the baseline has such")
      ->type_name("FILE,...");
  app.add_flag("--quiet", args->quiet, "no progress");
  return [args] { return propose(*args); };
}

std::function<int()> declare_diff(CLI::App& app) {
  auto args = std::make_shared<std::pair<std::string, std::string>>();
  app.add_option("BEFORE", args->first, "a baseline file")->type_name("")->required();
  app.add_option("AFTER", args->second, "another one")->type_name("")->required();
  return [args] {
    const Baseline before = read_baseline(args->first), after = read_baseline(args->second);
    print_text(diff_text(compare_baselines(before, after, CheckOptions().alpha)));
    return static_cast<int>(kExitFine);
  };
}

struct ApproveArgs {
  std::string baseline, reason, keys = "*";
};

std::function<int()> declare_approve(CLI::App& app) {
  auto args = std::make_shared<ApproveArgs>();
  app.add_option("BASELINE", args->baseline, "a baseline with a proposal next to it")
      ->type_name("")
      ->required();
  app.add_option("--reason", args->reason, "why the new numbers are right; kept in the history")
      ->type_name("TEXT")
      ->required();
  app.add_option("--keys", args->keys, "which numbers: a glob over LANE/METRIC/PLACE")
      ->type_name("GLOB")
      ->capture_default_str();
  return [args] {
    const std::string proposal = proposal_of(args->baseline);
    const Baseline before = read_baseline(args->baseline);
    // A proposal is merged by nobody: another checksum is damage.
    if (seal_of(read_text_file(proposal)) == Seal::kBroken) {
      throw InputError(fmt::format("{} is damaged: its checksum does not fit", proposal),
                       fmt::format("`lockstep baseline propose {}` records it anew",
                                   shell_quoted(args->baseline)));
    }
    Baseline proposed = read_baseline(proposal);
    if (proposed.proposed_for != text_hash(read_text_file(args->baseline))) {
      throw InputError(fmt::format("{}: proposed for another state of {}, which has changed since",
                                   proposal, args->baseline),
                       fmt::format("`lockstep baseline propose {}` records it anew",
                                   shell_quoted(args->baseline)));
    }
    const std::string text =
        to_json(approve(before, proposed, args->keys, args->reason, LOCKSTEP_VERSION));
    write_text_file_atomically(args->baseline, text);
    if (args->keys == "*") {
      std::error_code error;
      std::filesystem::remove(proposal, error);
    } else {  // the rest of a proposal can still be accepted
      proposed.proposed_for = text_hash(text);
      write_text_file_atomically(proposal, to_json(proposed));
    }
    print_line(fmt::format("{}: {} accepted.", args->baseline,
                           args->keys == "*" ? "the whole proposal" : args->keys));
    return static_cast<int>(kExitFine);
  };
}

}  // namespace

std::function<int()> declare_baseline(CLI::App& app) {
  struct Part {
    CLI::App* app;
    std::function<int()> work;
  };
  auto parts = std::make_shared<std::vector<Part>>();
  const auto add = [&](const char* name, const char* help,
                       std::function<int()> (*declare)(CLI::App&)) {
    CLI::App* sub = app.add_subcommand(name, help);
    parts->push_back({sub, declare(*sub)});
  };
  add("record", "run a model or capture and its ensemble; write a baseline", declare_record);
  add("propose", "record anew what a baseline describes, next to it, and show what changes",
      declare_propose);
  add("diff", "show what differs between two baselines", declare_diff);
  add("approve", "take a proposal into its baseline, with a reason", declare_approve);
  app.require_subcommand(1);
  return [parts] {
    for (const Part& part : *parts) {
      if (part.app->parsed()) return part.work();
    }
    return static_cast<int>(kExitUsage);
  };
}

}  // namespace lockstep

// lockstep recommend: runs candidates of a model or a capture, or reads the ranges of a run.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "analysis/search/recommend.h"
#include "analysis/search/search.h"
#include "reports/advice/advice_text.h"
#include "reports/emit/emit_kinds.h"
#include "reports/run/report_format.h"
#include "reports/words/range_text.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/cli/arguments/emit_arguments.h"
#include "src/cli/arguments/search_arguments.h"
#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/recommend_fix.h"
#include "src/cli/recommend_parts.h"
#include "src/cli/terminal/progress.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/verify_run.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/graph/json.h"
#include "src/models/model.h"
#include "src/policy/find_policy.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/hdf5/file_block.h"
#include "src/train/replay_command.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_option_syntax.h"

namespace lockstep {
namespace {

constexpr std::string_view kPolicyExtension = ".toml";
constexpr int64_t kSearchSteps = 60;

struct RecommendArgs {
  RunOptions options;  // of the replays; its model is MODEL, a capture or a run file
  SearchWords search;
  std::string fix, output, report;
  EmitWords emitted;
  double tolerance = kToleratedShare;
  int threads = 0;
  bool interpolate = false;  // parts
  bool prove = false, overwrite = false, all = false, json = false, quiet = false;

  const std::string& run() const { return options.model; }
};

struct RecommendOptions {
  std::vector<OptionOnLine> steps;       // of every replay
  std::vector<OptionOnLine> of_models;   // of their models: a capture defines these
  std::vector<CLI::Option*> of_runs;     // of candidates, all these included: a run file has none
  std::vector<CLI::Option*> not_of_fix;  // of the search for a policy
  CLI::Option* tolerance = nullptr;
  CLI::Option* formats = nullptr;
  std::vector<CLI::Option*> not_of_parts;  // of a search whose candidates train
};

// Of the model's loss, for parts: 0.25 % of a loss of 2. Source: DeepSeek-V3, arXiv 2412.19437,
// section 3.3: the loss of FP8 training stays within 0.25 % of BF16's.
constexpr double kToleratedOfParts = 0.005;

// A name for a run file that does not exist yet, so that a printed command runs unchanged.
std::string free_name(const std::string& stem) {
  std::string name = stem + ".h5";
  std::error_code error;
  for (int k = 2; std::filesystem::exists(name, error); ++k)
    name = fmt::format("{}-{}.h5", stem, k);
  return name;
}

// For the model of `run`, --emit's files.
void emit_policy(const RecommendArgs& args, const RunFile& run, const std::string& policy,
                 const std::string& evidence) {
  if (args.emitted.empty()) return;
  EmitFacts facts{.policy = parse_policy(policy, "the policy"),
                  .graph = graph_from_json(run.graph_json()),
                  .model = run.options().model,
                  .evidence = evidence};
  facts.trains = std::ranges::any_of(run.sites().sites, [](const Site& site) {
    return site.role == Role::kGradWeight || site.role == Role::kGradActivation;
  });
  emit(args.emitted, facts, args.json);
}

// From the ranges of a recorded run: nothing is run.
int recommend_from_run(const RecommendArgs& args, const std::vector<std::string>& formats,
                       ProblemList& problems) {
  std::optional<RunFile> opened;
  collect_problems(problems, [&] { opened.emplace(args.run()); });
  problems.throw_if_any();
  const RunFile& run = *opened;
  note_missing_checksums(run);
  const int64_t broke = first_nonfinite_loss(run.loss(0), run.scalers(0));
  if (broke >= 0) {
    fmt::print(
        "No answer: fp32's own loss is not finite at step {}; fix the fp32 training first.\n",
        broke);
    return kExitInconclusive;
  }
  const Recommendation found = recommend(run, formats.front());
  emit_policy(args, run, found.candidate.toml,
              fmt::format("exponent histograms of the fp32 lane of {}, {} steps of {}; nothing "
                          "was run",
                          run.path(), run.measured_steps(), run.options().model));
  if (!args.output.empty()) write_text_file_atomically(args.output, found.candidate.toml);
  const std::vector<ScaleCourse> courses = scale_courses(run);
  if (args.json) {
    print_text(ranges_json(found.ranges, courses, run.options().model, run.measured_steps()));
    return kExitFine;
  }
  if (run.measured_steps() < run.steps()) {
    print_note(
        fmt::format("note: ranges of the {} measured steps of {}; no loss scale is predicted "
                    "without statistics of every step",
                    run.measured_steps(), run.steps()));
  }
  print_text(fmt::format(
      "{}\n{}Ranges only: nothing was run. `lockstep recommend {}` runs candidates and judges "
      "them.\n",
      range_text(found.ranges), scale_courses_text(courses), shell_path(run.options().model)));
  if (args.output.empty()) {
    print_text("\nThe policy (write it with -o policy.toml):\n\n" + found.candidate.toml);
  } else {
    fmt::print("\n");
    print_line(fmt::format("Wrote {}. To see what it does:", args.output));
    RunOptions repeated = run.options();
    repeated.lanes = {std::string(kReferenceLane), args.output};
    if (needs_twin(repeated)) add_twins(repeated, 1);
    print_text(to_text({verbatim(broken_command(replay_command(repeated, free_name("verify"))))}));
  }
  return kExitFine;
}

// The answer at the top of a report on plain autocast and what is recommended, run together.
void write_advice_report(const std::string& path, TrialRuns& runs, const Advice& advice,
                         const AdviceFacts& facts) {
  std::vector<Candidate> lanes;
  if (advice.plain) lanes.push_back(advice.plain->candidate);
  const bool is_other = advice.chosen && (!advice.plain || advice.chosen->candidate.lane !=
                                                               advice.plain->candidate.lane);
  if (is_other) lanes.push_back(advice.chosen->candidate);
  if (!lanes.empty()) runs.run(lanes);
  const Report report = read_report(RunFile(runs.last_path()));
  const ReportFormat* format = report_format_of_file(path);
  write_text_file_atomically(
      path,
      format->write({report, advice_blocks(advice, facts), search_blocks(advice)}, TextStyle{}));
}

// A search compares losses of lanes that train.
void require_own_updates(const Capture& capture) {
  if (!records_updates(capture)) return;
  const std::string replay =
      "lockstep replay " + shell_path(capture.path) + " -o RUN.h5 && lockstep recommend RUN.h5";
  if (is_inference(capture)) {
    throw InputError(fmt::format("'{}': a capture of inference; a search compares how lanes train",
                                 capture.path),
                     replay + " shows which layers' ranges fit");
  }
  throw InputError(
      fmt::format("'{}': the updates of {} are recorded; every lane takes them whatever its "
                  "gradients are, so a search would see no harm of bad gradients",
                  capture.path, capture.optimizer_class),
      replay + " shows which layers' ranges fit; or capture steps with SGD, Adam or AdamW");
}

// Runs candidates.
int recommend_by_running(RecommendArgs& args, const SearchOptions& wanted) {
  AdviceFacts facts;
  facts.model = args.run();
  facts.folder = search_folder(args.run());
  RunOptions& options = args.options;
  int64_t captured = 0;
  if (is_capture(options.model)) {
    const Capture capture = read_capture(options.model, CaptureUse::kReplay);
    options.capture_hash = capture.sha256;
    captured = static_cast<int64_t>(capture.steps.size());
    require_own_updates(capture);
    if (args.prove && captured >= kFewestCapturedSteps) {
      options.captured_order = steps_for_search(captured);
    }
    const int64_t seen = options.captured_order.empty() ? captured : captured / 2;
    options.cycle = seen < options.steps;
    if (options.cycle) facts.captured_steps = seen;
  }
  options.held_out = false;  // losses are judged
  const auto watch = [&]() -> std::unique_ptr<Observer> {
    if (args.quiet || args.json) return nullptr;
    return std::make_unique<Progress>(0, options.steps, "");
  };
  TrialRuns runs(options, facts.folder, LOCKSTEP_VERSION, catch_stop_signals(), watch);
  std::optional<Advice> advice;
  try {
    advice.emplace(search(runs, wanted));
    if (args.prove && advice->chosen) {
      if (captured == 0 || captured >= kFewestCapturedSteps) {
        facts.proof = prove(runs, advice->chosen->candidate, args.tolerance, captured);
        facts.proof_orders = captured > 0;
      } else {
        facts.no_proof = fmt::format(
            "No proof: the capture has {} steps; with {} or more, the search sees one half and the "
            "proof the other.",
            captured, kFewestCapturedSteps);
      }
    }
  } catch (const SearchStopped&) {
    return search_stopped(facts.folder);
  }
  facts.replays = runs.replays();
  facts.lanes = runs.lanes();
  facts.measured = runs.measured();
  facts.read_again = runs.read_again();
  facts.not_tested = not_tested(*advice);
  facts.all = args.all;
  std::tie(facts.emitted, facts.module) = emitted_module(args.emitted);
  if (!args.report.empty()) {
    try {
      write_advice_report(args.report, runs, *advice, facts);
    } catch (const SearchStopped&) {
      return search_stopped(facts.folder);
    }
  }
  print_text(args.json ? advice_json(*advice, facts) : advice_text(*advice, facts, output_style()));
  if (!args.report.empty() && !args.json) {
    fmt::print("\n");
    print_line("Wrote " + args.report + ".");
  }
  const bool refuted = facts.proof && facts.proof->result == Proof::Result::kFail;
  if (!advice->chosen || refuted) {
    if (!args.output.empty() || !args.emitted.empty()) {
      fmt::print(stderr, "lockstep: note: there is no policy to write\n");
    }
    const bool is_answer = advice->answer == Advice::Answer::kFp32;
    return refuted ? kExitRegression : is_answer ? kExitFine : kExitInconclusive;
  }
  const Candidate& chosen = advice->chosen->candidate;
  emit_policy(args, RunFile(runs.last_path()), policy_text(chosen),
              fmt::format("{} in {} steps of {}",
                          advice->is_too_short ? "agreed with fp32, which did not learn itself,"
                                               : "trained as fp32 did",
                          advice->steps, args.run()));
  if (!args.output.empty()) {
    write_text_file_atomically(args.output, policy_text(chosen));
    if (!args.json) print_line("Wrote " + args.output + ".");
  }
  const bool is_proven = facts.proof && facts.proof->result == Proof::Result::kPass;
  return args.prove && !is_proven ? kExitInconclusive : kExitFine;
}

// A lane that goes wrong: of a model, a capture, or a run file, whose options apply.
int fix_lane_of(RecommendArgs& args, const SearchOptions& wanted, const RecommendOptions& options,
                bool is_run, ProblemList& problems) {
  for (const CLI::Option* option : options.not_of_fix) {
    if (option->count() == 0) continue;
    problems.add(fmt::format("{}: not with --fix", option->get_name()), "leave one of them out");
  }
  FixArgs fix{.options = args.options,
              .lane = args.fix,
              .output = args.output,
              .folder = search_folder(args.run()),
              .budget = wanted.budget,
              .json = args.json,
              .quiet = args.quiet};
  if (is_run) {
    for (const auto& [row, option] : options.of_models) {
      if (option->count() == 0) continue;
      problems.add(fmt::format("{}: the run file {} says it", option->get_name(), args.run()),
                   "leave it out");
    }
    const int64_t steps = options.steps.front().option->count() > 0 ? args.options.steps : 0;
    collect_problems(problems, [&] { fix.options = options_of_run(args.run(), steps); });
  } else if (is_capture(args.run())) {
    refuse_captured(args.run(), options.of_models, problems);
  }
  problems.throw_if_any();
  return recommend_fix(fix);
}

// A format for each part of a folder.
int recommend_for_parts(RecommendArgs& args, const SearchOptions& wanted,
                        const RecommendOptions& options, ProblemList& problems) {
  RecommendPartsArgs parts{.search = {.replay = args.options,
                                      .formats = {},
                                      .tolerance = kToleratedOfParts,
                                      .interpolates = args.interpolate,
                                      .gpu = wanted.gpu,
                                      .folder = search_folder(args.run()),
                                      .command_line = command_line()},
                           .output = args.output,
                           .json = args.json,
                           .quiet = args.quiet,
                           .emit = {}};
  parts.search.replay.steps = 0;  // all that were captured
  const auto is_narrow = [](const std::string& f) { return find_narrow_format(f) != nullptr; };
  std::vector<std::string> bases;
  for (const std::string& format : wanted.formats) {
    (is_narrow(format) ? parts.search.formats : bases).push_back(format);
  }
  if (options.formats->count() == 0) {
    bases = {parts.search.base};
    for (const NarrowFormat& narrow : narrow_formats()) {
      if (peak_rate(*wanted.gpu, narrow.unit) > 0) {
        parts.search.formats.emplace_back(narrow.format);
      }
    }
  }
  const bool is_bare = options.formats->count() == 0 && parts.search.formats.empty();
  if (is_bare) {
    problems.add(
        fmt::format("--gpu {}: has no unit for a format of less than 16 bits", wanted.gpu->name),
        "name a GPU that has, or the formats with --formats");
  } else if (bases.size() != 1 || !has_16_bits(bases.front()) || parts.search.formats.empty()) {
    problems.add(fmt::format("--formats {}: of parts, one of 16 bits and at least one narrower",
                             args.search.formats),
                 "--formats bf16,fp8-rowwise");
  } else {
    parts.search.base = bases.front();
  }
  if (options.tolerance->count() > 0) parts.search.tolerance = args.tolerance;
  for (const CLI::Option* option : options.not_of_parts) {
    if (option->count() == 0) continue;
    problems.add(fmt::format("{}: {} is a folder of parts, which do not train", option->get_name(),
                             args.run()),
                 "leave it out");
  }
  problems.throw_if_any();
  if (!args.emitted.empty()) {
    parts.emit = [&](const std::string& run, const std::string& policy,
                     const std::string& evidence) {
      emit_policy(args, RunFile(run), policy, evidence);
    };
  }
  return recommend_parts(parts);
}

void check_recommend_options(const RecommendArgs& args, const RecommendOptions& options,
                             const std::vector<std::string>& formats, bool are_parts,
                             ProblemList& problems) {
  for (size_t i = 0; i < formats.size(); ++i) {
    if (std::count(formats.begin(), formats.begin() + static_cast<int64_t>(i), formats[i]) > 0) {
      problems.add(fmt::format("--formats {}: {} is there twice", args.search.formats, formats[i]));
    }
  }
  if (options.tolerance->count() > 0 && !args.prove && !are_parts) {
    problems.add("--tolerance: only for --prove and folders of parts",
                 "add --prove, or leave it out");
  }
  if (args.interpolate && !are_parts) {
    problems.add(fmt::format("--interpolate: {} is no folder of parts", args.run()),
                 "leave it out");
  }
  if (are_parts && !(args.tolerance > 0)) {
    problems.add(fmt::format("--tolerance {}: must be positive, a change of the model's loss",
                             args.tolerance));
  }
  if (!are_parts && !(args.tolerance > 0 && args.tolerance < 1)) {
    problems.add(
        fmt::format("--tolerance {}: must lie between 0 and 1, a share of the fall of "
                    "fp32's loss",
                    args.tolerance));
  }
}

void check_report_output(const RecommendArgs& args, ProblemList& problems) {
  if (args.report.empty()) return;
  const ReportFormat* format = report_format_of_file(args.report);
  if (args.report != kStandardOutput &&
      (format == nullptr || format->write == nullptr)) {  // no write: a folder of tables
    problems.add(fmt::format("--report {}: the ending must name a format of one file", args.report),
                 "--report NAME.html");
  }
  check_output(args.report, args.overwrite ? Replace::kText : Replace::kNothing,
               "--report OTHER, or --overwrite", problems, "--report");
}

int run_recommend(RecommendArgs& args, const RecommendOptions& options, ProblemList& problems) {
  if (args.threads != 0) set_thread_count(args.threads);
  const SearchOptions wanted = search_options(args.search, problems);
  const std::vector<std::string>& formats = wanted.formats;
  const bool are_parts = is_parts_folder(args.run());
  check_recommend_options(args, options, formats, are_parts, problems);
  check_text_output("-o", args.output, kPolicyExtension, args.overwrite, problems);
  check_report_output(args, problems);
  CommandFiles files;
  files.inputs_of(args.options);
  files.input("MODEL", args.run());
  if (args.fix.ends_with(kPolicyExtension)) files.input("--fix", args.fix);
  files.output("-o", args.output);
  check_emit(args.emitted, args.overwrite, files, problems);
  files.output("--report", args.report);
  files.check(problems);
  if (are_parts) return recommend_for_parts(args, wanted, options, problems);
  std::error_code error;
  const bool is_run = std::filesystem::exists(args.run(), error) &&
                      !looks_like_capture(args.run()) &&
                      std::ranges::none_of(models(), [&](auto& m) { return m.name == args.run(); });
  read_options(options.steps, args.options, problems);
  read_options(options.of_models, args.options, problems);
  if (!args.fix.empty()) return fix_lane_of(args, wanted, options, is_run, problems);
  if (is_run) {
    for (const CLI::Option* option : options.of_runs) {
      if (option->count() == 0) continue;
      problems.add(fmt::format("{}: {} is a run file, of which nothing is run", option->get_name(),
                               args.run()),
                   "give the model or the capture, or leave it out");
    }
    for (const std::string& format : split(args.search.formats, ',')) {
      if (find_narrow_format(format) == nullptr) continue;
      problems.add(fmt::format("--formats {}: {} is a run file, whose ranges say nothing of it",
                               format, args.run()),
                   "give the model or the capture");
    }
    return recommend_from_run(args, formats, problems);
  }
  if (is_capture(args.run())) refuse_captured(args.run(), options.of_models, problems);
  problems.throw_if_any();
  return recommend_by_running(args, wanted);
}

}  // namespace

std::function<int()> declare_recommend(CLI::App& app) {
  auto args = std::make_shared<RecommendArgs>();
  const ArgumentChecks checks("recommend");
  RunOptions& o = args->options;
  o.model.clear();
  o.steps = kSearchSteps;
  app.add_option(
         "MODEL", o.model,
         "a built-in model or a capture: candidates are run and judged; a folder of parts: a "
         "format for each (docs/parts.md); or a run file: its ranges are read, nothing is "
         "run")
      ->type_name("")
      ->required();
  app.add_option(
         "--formats", args->search.formats,
         "fp16, bf16, tf32: in this order, the next where nothing in the one before passes; fp8, "
         "fp8-rowwise, fp8-blockwise, mxfp8, nvfp4: for linear layers, on top of what passes; of a "
         "run file, the first; of parts, bf16 and the narrow ones that the GPU has")
      ->type_name("A,B")
      ->capture_default_str();
  app.add_option("--fix", args->fix,
                 "a lane that goes wrong, a preset or a policy file: runs the remedies of what is "
                 "found in it; of a run file: with its options; exit code 3: none helped")
      ->type_name("LANE");
  RecommendOptions options;
  options.formats = app.get_option("--formats");
  options.not_of_fix = {options.formats};
  const auto of_runs = [&](CLI::Option* option, const char* type) {
    options.of_runs.push_back(option->type_name(type));
    return option;
  };
  const auto of_replays = [&](const RunOption& row, const char* help) {
    const OptionOnLine declared = declare_option(app, row, o);
    options.of_runs.push_back(declared.option->description(help));
    return declared;
  };
  options.steps = {of_replays(option_at(o, &o.steps), "of every run; a capture's are repeated")};
  of_runs(app.add_option("--budget", args->search.budget,
                         "candidates to run beyond the first lane, minutes, or both: 24,10m"),
          "N,Mm")
      ->capture_default_str();
  of_runs(app.add_option("--also", args->search.also,
                         "try narrower optimizer state (state), weights without masters (weights), "
                         "FP16 sums of products, fast FP8 sums (sums)"),
          "A,B");
  of_runs(app.add_option("--gpu", args->search.gpu, gpu_help()), "NAME");
  options.of_runs.push_back(app.add_flag(
      "--prove", args->prove,
      "run what is recommended on 5 to 12 new seeds, against the tolerance; exit code 1: refuted, "
      "3: inconclusive"));
  for (const char* name : {"--also", "--gpu", "--prove"}) {
    options.not_of_fix.push_back(app.get_option(name));
  }
  options.tolerance = of_runs(app.add_option("--tolerance", args->tolerance,
                                             "how much larger than fp32's the loss may be, as a "
                                             "share of the fall of fp32's loss; of parts, how much "
                                             "the loss may change [0.005]"),
                              "X");
  checks.number(options.tolerance->capture_default_str());
  const RunOption& optimizer_args =
      *std::ranges::find(run_options(), &parse_optimizer_args, &RunOption::parse);
  options.of_models = {
      of_replays(option_at(o, &o.data), "see `lockstep list data` [the model's default]"),
      of_replays(option_at(o, &o.sizes), "sizes, e.g. layers=2,width=64"),
      of_replays(option_at(o, &o.optimizer), "see `lockstep list optimizers`"),
      of_replays(optimizer_args, "its numbers, e.g. lr=1e-3"),
      of_replays(option_at(o, &o.batch), "examples per step"),
      of_replays(option_at(o, &o.seed), "of weights, batches and noise")};

  app.add_flag("--interpolate", args->interpolate,
               "of parts: also those between two captured ones, by their numbers");
  options.not_of_fix.push_back(app.get_option("--interpolate"));
  options.not_of_parts = {app.get_option("--fix"), app.get_option("--budget"),
                          app.get_option("--also"), app.get_option("--prove")};
  options.not_of_parts.push_back(options.steps.front().option);
  for (const OptionOnLine& own : options.of_models) options.not_of_parts.push_back(own.option);

  app.add_option("-o,--output", args->output, "write the policy here, NAME.toml")
      ->type_name("FILE");
  options.not_of_fix.push_back(declare_emit(app, args->emitted));
  refuse_emit_pytorch(app, checks.problems());
  of_runs(app.add_option("--report", args->report,
                         "write a report here: the answer with its charts, then plain autocast and "
                         "what is recommended, run together; NAME.html, NAME.md"),
          "FILE");
  options.not_of_fix.push_back(app.get_option("--report"));
  options.not_of_parts.push_back(app.get_option("--report"));
  app.add_flag("--overwrite", args->overwrite, "replace FILE if it exists (never an HDF5 file)");
  app.add_flag("--all", args->all, "the whole table of ranges, too");
  app.add_flag("--json", args->json, "print JSON instead of text");
  declare_threads(app, checks, args->threads);
  app.add_flag("--quiet", args->quiet, "no progress");
  app.footer(
      "Runs plain autocast and FP32 side by side first; if both train alike, nothing needs doing.\n"
      "Otherwise keeps layers in FP32 (by their ranges, by what broke, by what moves the loss)\n"
      "until a candidate trains as FP32 does, then lets go of every layer it can. The runs are\n"
      "kept in NAME.recommend, next to a capture or run: the same command, begun again, goes on "
      "from "
      "there.\n"
      "--fix runs a lane that goes wrong instead, takes its gravest finding, and runs what can be\n"
      "done about it, from one value to the whole policy (docs/findings.md).");
  return [args, checks, options] { return run_recommend(*args, options, checks.problems()); };
}

}  // namespace lockstep

// See replay_arguments.h.
#include "src/cli/arguments/replay_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>

#include "emulation/kernels/active_kernels.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/cli/arguments/number_options.h"
#include "src/core/text.h"
#include "src/policy/policy.h"
#include "src/policy/twin_lane.h"
#include "src/update/optimizers.h"
#include "src/update/parameter_groups.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

constexpr uint64_t kMostSeeds = 1000;
constexpr uint64_t kMostThreads = 256;
constexpr uint64_t kMostWorkers = 4096;

// A lane without a name would be ignored silently.
void check_lanes(const ReplayArgs& args, ProblemList& problems) {
  if (args.lanes.empty()) return;  // refuse_empty_words reports it
  for (const std::string& lane : args.options.lanes) {
    if (!lane.empty()) continue;
    problems.add(
        fmt::format("--lanes {}: a name before and after every comma required", args.lanes),
        "e.g. --lanes fp32,tf32");
    return;
  }
}

std::vector<std::string> owners(std::string_view number) {
  std::vector<std::string> found;
  for (const Optimizer& optimizer : optimizers()) {
    for (const HyperParameter& p : optimizer.parameters) {
      if (p.name == number) found.emplace_back(optimizer.name);
    }
  }
  return found;
}

std::string software_device_help() {
  std::string names;
  for (const SoftwareDevice& device : software_devices()) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", device.name, device.help);
  }
  return names + ": forms the sums of products of software lanes [the CPU]";
}

// "sgd 0.05; adam, adamw 0.001": the defaults of a number.
std::string owners_help(std::string_view number) {
  std::string text;
  double last = std::numeric_limits<double>::quiet_NaN();
  for (const Optimizer& optimizer : optimizers()) {
    for (const HyperParameter& p : optimizer.parameters) {
      if (p.name != number) continue;
      if (p.initial == last) {
        text += fmt::format(", {}", optimizer.name);
      } else {
        if (!text.empty()) text += fmt::format(" {}; ", last);
        text += optimizer.name;
      }
      last = p.initial;
    }
  }
  return text + fmt::format(" {}", last);
}

// A number given for an optimizer that lacks it would be ignored silently.
bool has_number(const std::string& optimizer, const std::string& number, const std::string& text,
                ProblemList& problems) {
  std::vector<std::string> names = owners(number);
  const auto is_known = [&](const Optimizer& o) { return o.name == optimizer; };
  if (std::ranges::none_of(optimizers(), is_known)) return false;  // LockstepRun reports it
  if (std::ranges::count(names, optimizer) > 0) return true;
  const std::string last = names.back();
  names.pop_back();
  problems.add(fmt::format("{} {}: only {} and {} have it, --optimizer is {}", option_name(number),
                           text, join(names, ", "), last, optimizer),
               "leave it out");
  return false;
}

void check_seeds(const ReplayArgs& args, ProblemList& problems) {
  const RunOptions& o = args.options;
  if (o.seeds <= 1) return;
  const std::string given = fmt::format("--seeds {}", o.seeds);
  if (is_capture(o.model)) {
    problems.add(given + ": a capture has the weights and batches of one run",
                 "leave --seeds out, or capture the loop again with another seed");
  }
  if (args.mode == "synced") {
    problems.add(given + ": in synced mode no outcome is judged, which is what seeds are for",
                 "leave --seeds out, or use --mode free");
  }
  if (o.seed > UINT64_MAX - static_cast<uint64_t>(o.seeds - 1)) {
    problems.add(fmt::format("--seed {} {}: the last seed is beyond {}", o.seed, given, UINT64_MAX),
                 "choose a smaller --seed");
  }
}

bool is_judged(const std::string& lane) {
  return !lane.empty() && lane != kReferenceLane && lane != kTruthLane && twin_number(lane) == 0;
}

// Adds twins until there are as many as wanted, those in --lanes included. By default one, if an
// outcome is judged: some lane besides the reference keeps its own weights.
void add_twins(ReplayArgs& args, bool given) {
  std::vector<std::string>& lanes = args.options.lanes;
  const bool judged = args.mode == "free" && std::ranges::any_of(lanes, is_judged);
  const int64_t wanted = given || judged ? args.twins : 0;
  int64_t there = std::ranges::count_if(lanes, [](const std::string& lane) {
    return twin_number(lane.substr(0, lane.rfind('@'))) > 0;
  });
  for (int number = 1; there < wanted && number <= kMostTwins; ++number) {
    const std::string twin = twin_name(number);
    if (std::ranges::any_of(lanes, [&](const std::string& lane) {
          return lane.substr(0, lane.rfind('@')) == twin;
        })) {
      continue;
    }
    lanes.push_back(twin);
    ++there;
  }
}

std::vector<std::string> globs(const std::string& text) {
  return text.empty() ? std::vector<std::string>{} : split(text, ',');
}

// The words of --statistics. `every`: --statistics-every where it is not given.
struct StatisticsLevel {
  std::string_view name;
  int64_t every;
  bool counts_between, takes_every;
};
constexpr StatisticsLevel kStatisticsLevels[] = {
    {"full", 1, false, true}, {"health", 0, true, true}, {"none", 0, false, false}};

std::vector<std::string> names_of(std::span<const StatisticsLevel> levels) {
  std::vector<std::string> names;
  for (const StatisticsLevel& level : levels) names.emplace_back(level.name);
  return names;
}

// `every_given`: --statistics-every was. An unknown word has its own problem.
void read_statistics(ReplayArgs& args, bool every_given, ProblemList& problems) {
  Measuring& measuring = args.options.measuring;
  const auto level = std::ranges::find(kStatisticsLevels, args.statistics, &StatisticsLevel::name);
  if (level == std::end(kStatisticsLevels)) return;
  if (!every_given) measuring.statistics_every = level->every;
  measuring.counts_between = level->counts_between && measuring.statistics_every != 1;
  if (level->takes_every || measuring.statistics_every == 0) return;
  problems.add(fmt::format("--statistics {}: contradicts --statistics-every {}", level->name,
                           measuring.statistics_every),
               "leave one of them out");
}

// Options with a syntax of their own.
void read_loop_options(ReplayArgs& args, ProblemList& problems) {
  RunOptions& o = args.options;
  collect_problems(problems, [&] {
    o.optimizer.values = parse_hyper_values("--optimizer-args", args.optimizer_args);
  });
  for (const auto& [name, text] : args.numbers) {
    if (!has_number(o.optimizer.name, name, text, problems)) continue;
    collect_problems(problems, [&] {
      const HyperValues one = parse_hyper_values(option_name(name), name + "=" + text);
      if (!o.optimizer.values.insert(*one.begin()).second) {
        problems.add(option_name(name) + ": also in --optimizer-args", "give it once");
      }
    });
  }
  collect_problems(problems, [&] { o.schedule = parse_schedule(args.schedule); });
  for (const std::string& group : args.groups) {
    collect_problems(problems, [&] { o.groups.push_back(parse_group(group, o.optimizer)); });
  }
  o.freeze = globs(args.freeze);
  o.eval_batch_norm = globs(args.eval_batch_norm);
  o.rewrites = globs(args.rewrites);
  collect_problems(problems,
                   [&] { o.loop_changes = parse_hyper_values("--change", args.changes); });
  o.eval_in_fp32 = args.eval_policy == kReferenceLane;
  for (const std::string& word :
       args.captured_order.empty() ? std::vector<std::string>{} : split(args.captured_order, ',')) {
    int64_t step = 0;
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, step);
    if (error != std::errc() || stop != end) {
      problems.add(fmt::format("--captured-order {}: numbers of steps required", word),
                   "for example --captured-order 2,0,1");
    }
    o.captured_order.push_back(step);
  }
}

}  // namespace

ReplayOptions declare_replay_options(CLI::App& app, std::shared_ptr<ReplayArgs> args,
                                     const ArgumentChecks& checks) {
  ReplayOptions options;
  RunOptions& o = args->options;
  o.model.clear();
  std::vector<CLI::Option*>* fixed = &options.fixed;
  const auto add = [&app, fixed](const char* group, const char* name, auto& value, const char* type,
                                 const char* help) {
    CLI::Option* option = app.add_option(name, value, help)->type_name(type)->group(group);
    fixed->push_back(option);
    return option;
  };
  const auto whole = [&](const char* in, const char* name, auto& value, uint64_t low, uint64_t high,
                         const char* help) {
    checks.whole(add(in, name, value, "N", help)->capture_default_str(), low, high);
  };
  app.add_option("MODEL", o.model,
                 "a built-in model (`lockstep list models`), or a capture file written by "
                 "lockstep_capture")
      ->type_name("");
  const char* group = "What to run";
  add(group, "--data", o.data, "SPEC", "see `lockstep list data` [the model's default]");
  checks.named_numbers(add(group, "--size", args->sizes, "NAME=X,...",
                           "sizes, e.g. layers=2,width=64: see `lockstep list models`"),
                       o.sizes);
  add(group, "--lanes", args->lanes, "A,B,...", "POLICY[:VERSION][@TARGET]; fp64: the truth")
      ->capture_default_str();
  whole(group, "--twins", args->twins, 0, kMostTwins,
        "one-ulp twins of fp32, which measure chaos; 0: none");
  options.twins = app.get_option("--twins");
  whole(group, "--steps", o.steps, 1, kLargestCount,
        "training steps; default for a capture: all of its steps");
  whole(group, "--batch", o.batch, 1, kLargestBatch, "examples per step");
  fixed->push_back(app.add_flag("--cycle", o.cycle,
                                "for a capture: after its last step, start again at its first")
                       ->group(group));
  add(group, "--captured-order", args->captured_order, "N,N,...",
      "for a capture: its steps in this order, over and over; they count from 0");
  checks.one_of(
      add(group, "--mode", args->mode, "free|synced", "whose weights a lane's step starts from")
          ->capture_default_str(),
      {"free", "synced"});
  checks.one_of(add(group, "--decisions", args->decisions, "recorded|own",
                    "for a capture: who chooses by values (experts, orders, comparisons)")
                    ->capture_default_str(),
                {"recorded", "own"});
  whole(group, "--seed", o.seed, 0, UINT64_MAX, "seed of weights, batches and noise");
  whole(group, "--seeds", o.seeds, 1, kMostSeeds,
        "runs of the same lanes, from --seed, --seed + 1, ..., in one file");
  whole(group, "--nudge", o.nudge, 0, UINT64_MAX,
        "start every weight one ulp up or down, by signs drawn from N; 0: as they are");

  group = "Optimizer";
  add(group, "--optimizer", o.optimizer.name, "NAME", "see `lockstep list optimizers`")
      ->capture_default_str();
  for (const std::string_view number : kNumberOptions) {
    const std::string help = owners_help(number);
    CLI::Option* option = app.add_option_function<std::string>(
        option_name(number),
        [args, number](const std::string& text) { args->numbers[std::string(number)] = text; },
        help);
    option->type_name("X")->group(group);
    checks.number(option);
    fixed->push_back(option);
  }
  add(group, "--optimizer-args", args->optimizer_args, "K=V,...",
      "any number of the optimizer, e.g. nesterov=1");
  add(group, "--schedule", args->schedule, "NAME[:K=V,...]", "see `lockstep list schedules`")
      ->capture_default_str();
  add(group, "--group", args->groups, "LAYERS:K=V,...",
      "numbers, or optimizer=, for these layers only; repeatable")
      ->allow_extra_args(false);

  group = "The loop";
  whole(group, "--accumulate", o.accumulate, 1, kLargestBatch, "micro-batches per step");
  fixed->push_back(declare_backward(app, checks, args->backward)->group(group));
  whole(group, "--workers", o.workers, 1, kMostWorkers,
        "data-parallel workers, each with its part of the batch");
  checks.number(add(group, "--clip-norm", o.clip_norm, "X",
                    "limit on the norm of all gradients; 0: no clipping")
                    ->capture_default_str());
  checks.number(add(group, "--clip-norm-type", o.clip_norm_type, "P",
                    "type of that norm: 2, 1, any p > 0, or inf (the largest gradient element)")
                    ->capture_default_str());
  checks.number(add(group, "--clip-value", o.clip_value, "X",
                    "limit on the size of each gradient element; 0: no clipping")
                    ->capture_default_str());
  add(group, "--freeze", args->freeze, "GLOB,...", "layers whose parameters are not trained");
  add(group, "--eval-batch-norm", args->eval_batch_norm, "GLOB,...",
      "batch_norm layers in evaluation mode");
  checks.number(add(group, "--batch-norm-eps", o.batch_norm_eps, "X",
                    "eps of every batch_norm; default: the model's own"));
  add(group, "--rewrite", args->rewrites, "NAME:NODE,...",
      "rewrites of the graph: eps:NODE=X, with_logits:NODE, scale_first:NODE");
  add(group, "--change", args->changes, "NAME=X,...",
      "of a capture: other numbers of its loop: clip_norm, the optimizer's (eps, lr)");
  add(group, "--start-from", o.start_from, "RUN.state[:LANE]",
      "start from the weights of another run's lane");
  checks.one_of(
      add(group, "--eval-policy", args->eval_policy, "own|fp32", "formats of held-out evaluations")
          ->capture_default_str(),
      {"own", "fp32"});

  group = "What to record";
  whole(group, "--eval-every", o.eval_every, 0, kLargestCount,
        "steps between held-out evaluations; 0: at the end");
  whole(group, "--eval-examples", o.eval_examples, 0, kLargestCount,
        "held-out examples per evaluation; 0: as many as were trained on");
  checks.one_of(
      add(group, "--statistics", args->statistics, "full|health|none",
          "what steps record: all statistics and errors; health: how many values roundings lost; "
          "nothing. The first step is full")
          ->capture_default_str(),
      names_of(kStatisticsLevels));
  options.statistics_every =
      add(group, "--statistics-every", o.measuring.statistics_every, "N",
          "full in every N-th step (0: the first alone), and in those in which numbers become "
          "infinite or NaN [1; with health or none: 0]");
  checks.whole(options.statistics_every, 0, kLargestCount);
  whole(group, "--histogram-every", o.measuring.histogram_every, 1, kLargestCount,
        "steps between full histograms");
  whole(group, "--sums-every", o.measuring.sums_every, 0, kLargestCount,
        "steps between exact recomputations of 64 outputs of every sum of products; 0: never");
  whole(group, "--checkpoint-every", o.checkpoint_every, 1, kLargestCount,
        "steps between checkpoints");
  fixed->push_back(app.add_flag("--overwrite", args->overwrite,
                                "replace the run file if it exists (never a capture)")
                       ->group(group));
  app.add_option("-o,--output", args->output, fmt::format("the run file [{}]", kDefaultRunFile))
      ->type_name("RUN")
      ->group(group);
  options.resume =
      app.add_option("--resume", args->resume_from,
                     "continue this run (or the one of -o) with the options it began with")
          ->type_name("[RUN]")
          ->expected(0, 1)
          ->group(group);

  group = "This machine (no effect on results)";
  checks.whole(
      app.add_option("--threads", args->threads, "1 to 256 [all]")->type_name("N")->group(group), 1,
      kMostThreads);
  app.add_option("--simd", args->simd, "scalar, avx2 or avx512 [the fastest here]")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--software-device", args->software_device, software_device_help())
      ->type_name("NAME")
      ->group(group);
  app.add_flag("--quiet", args->quiet, "no progress, no summary")->group(group);
  app.footer(
      "--mode free: every lane keeps its own weights, as in training; synced: every step starts\n"
      "from the reference's weights and shows what one step loses. The fp32 reference always "
      "runs.\n"
      "--decisions recorded: every lane follows what the captured steps chose; own: lanes choose "
      "by\n"
      "their own values where the result stays inside the graph (topk, sort, argmax).\n"
      "Twins run by default where an outcome is judged: in free mode, with a lane besides fp32 and "
      "fp64.\nWithout twins a lane of a single seed is never called worse. --seeds is for built-in "
      "models in\nfree mode: each lane is judged by its mean gap to fp32 of the same seed.\n"
      "Ctrl-C stops after the step in progress and leaves an intact run file (exit code 130).\n"
      "Example:\n  lockstep replay lenet --data mnist:DIR --steps 400 \\\n"
      "    --lanes fp32,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16 -o run.h5");
  for (const char* name :
       {"--data", "--size", "--batch", "--optimizer", "--optimizer-args", "--schedule", "--group",
        "--accumulate", "--workers", "--clip-norm", "--clip-norm-type", "--clip-value",
        "--start-from", "--eval-every", "--eval-examples", "--eval-policy"}) {
    options.of_models.push_back(app.get_option(name));
  }
  for (const std::string_view number : kNumberOptions) {
    options.of_models.push_back(app.get_option(option_name(number)));
  }
  options.steps = app.get_option("--steps");
  return options;
}

void read_replay_options(ReplayArgs& args, const ReplayOptions& options, ProblemList& problems) {
  if (is_capture(args.options.model)) {
    refuse_captured(args.options.model, options.of_models, problems);
    if (options.steps->count() == 0) args.options.steps = 0;  // all of them
  } else if (!args.captured_order.empty()) {
    problems.add("--captured-order: only a capture has steps to order", "leave it out");
  } else if (args.options.cycle) {
    problems.add("--cycle: only a capture can start again after its last step", "leave it out");
  }
  if (!is_capture(args.options.model) && args.decisions == "own") {
    problems.add("--decisions own: only a capture has recorded decisions", "leave it out");
  }
  read_statistics(args, options.statistics_every->count() > 0, problems);
  check_lanes(args, problems);
  check_seeds(args, problems);
  add_twins(args, options.twins->count() > 0);
  read_loop_options(args, problems);
}

void refuse_fixed(const ReplayOptions& options) {
  ProblemList problems("replay --resume");
  for (const CLI::Option* option : options.fixed) {
    if (option->count() == 0) continue;
    problems.add(option->get_name() + ": a resumed run keeps the options in its file",
                 "leave it out");
  }
  problems.throw_if_any();
}

}  // namespace lockstep

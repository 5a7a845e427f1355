// The rows of run_option_rows.h.
#include "src/train/run_option_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "src/models/model.h"
#include "src/policy/twin_lane.h"
#include "src/train/run_option_syntax.h"
#include "src/train/run_option_text.h"
#include "src/update/optimizers.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

template <auto... Path>
using MemberType = std::remove_reference_t<decltype((std::declval<RunOptions&>().*....*Path))>;

template <auto... Path>
constexpr OptionMember<MemberType<Path...>> at() {
  using T = MemberType<Path...>;
  return {[](RunOptions& o) -> T& { return (o.*....*Path); },
          [](const RunOptions& o) -> const T& { return (o.*....*Path); }};
}

template <auto... Path>
constexpr ChosenWord word_at() {
  using T = MemberType<Path...>;
  return {[](const RunOptions& o) { return static_cast<size_t>((o.*....*Path)); },
          [](RunOptions& o, size_t index) { (o.*....*Path) = static_cast<T>(index); },
          [](const RunOptions& o) -> const void* { return &(o.*....*Path); }};
}

using O = RunOptions;

constexpr std::string_view kModes[] = {"free", "synced"};
constexpr std::string_view kModesTold[] = {
    "free: every lane keeps its own weights",
    "synced: every step starts from the reference's weights"};
constexpr std::string_view kDecisions[] = {"recorded", "own"};
constexpr std::string_view kDecisionsTold[] = {
    "", "own: lanes choose by their own values where they can"};
constexpr std::string_view kPasses[] = {"joint", "per-loss"};
constexpr std::string_view kEvalPolicies[] = {"own", "fp32"};

constexpr NumberLimit kClipLimit = {.infinity = false, .hint = "0 means no clipping"};

std::span<const HyperParameter> optimizer_numbers(std::string_view name) {
  return find_optimizer(name).parameters;
}
std::span<const HyperParameter> schedule_numbers(std::string_view name) {
  return find_schedule(name).parameters;
}

std::string model_text(const RunOptions& o) {
  return o.capture_hash.empty() ? o.model : "capture with SHA-256 " + o.capture_hash;
}
std::string data_kind(const RunOptions& o) {
  return o.data.substr(0, o.data.find(':'));
}
// The sizes that are not the model's own.
std::string sizes_text(const RunOptions& o) {
  std::map<std::string, double> sizes = o.sizes;
  const auto model = std::ranges::find(models(), o.model, &Model::name);
  if (model != models().end()) {
    for (const ModelSize& size : model->sizes) {
      const auto given = sizes.find(std::string(size.name));
      if (given != sizes.end() && given->second == size.value) sizes.erase(given);
    }
  }
  return named_numbers_text(sizes);
}
std::string clipping_text(const RunOptions& o) {
  return fmt::format("{}-norm {}, value {}{}", o.clip_norm_type, o.clip_norm, o.clip_value,
                     o.clips_scaled ? ", before unscaling" : "");
}
std::string batch_norm_eps_text(const RunOptions& o) {
  return o.batch_norm_eps ? fmt::format("{}", *o.batch_norm_eps) : "own";
}
std::string start_text(const RunOptions& o) {
  return o.start_hash.empty() ? o.start_from
                              : fmt::format("{} (weights {})", o.start_from, o.start_hash);
}

using enum OptionOf;
using enum OptionEffect;

constexpr char kWhat[] = "What to run", kOptimizer[] = "Optimizer", kLoop[] = "The loop",
               kRecord[] = "What to record";

constexpr RunOption number_row(std::string_view option, std::string_view number) {
  return {.option = option,
          .group = kOptimizer,
          .type = "X",
          .of = kModels,
          .number = number,
          .parse = parse_optimizer_number,
          .printed = printed_optimizer_number,
          .effect = kTraining};
}

// A few lines a row:
// clang-format off
constexpr RunOption kRows[] = {
    {.key = "model", .place = 1, .help = "a built-in model or the path of a capture",
     .member = at<&O::model>(), .is_required = true,
     .effect = kTraining, .setting = "model", .setting_text = model_text},
    {.option = "--data", .key = "data", .place = 3, .group = kWhat, .type = "SPEC",
     .help = "see `lockstep list data` [the model's default]", .member = at<&O::data>(),
     .of = kModels, .is_required = true, .effect = kDraw, .setting = "data",
     .setting_text = data_kind, .in_baselines = false},
    {.option = "--size", .key = "sizes", .place = 2, .group = kWhat, .type = "NAME=X,...",
     .help = "sizes, e.g. layers=2,width=64: see `lockstep list models`", .member = at<&O::sizes>(),
     .of = kModels, .effect = kTraining, .setting = "sizes", .setting_text = sizes_text,
     .in_baselines = false},
    {.option = "--lanes", .key = "lanes", .place = 4, .group = kWhat, .type = "A,B,...",
     .help = "POLICY[:VERSION][@TARGET]; fp64: the truth", .member = at<&O::lanes>(),
     .is_list = true, .parse = parse_lanes, .printed = printed_lanes, .is_required = true},
    {.option = "--twins", .group = kWhat, .type = "N",
     .help = "one-ulp twins of fp32, which measure chaos; 0: none", .high = kMostTwins,
     .parse = parse_twins, .text = usual_twins_text,
     .no_baseline = "the ensemble measures what an ulp does"},
    {.option = "--steps", .key = "steps", .place = 5, .group = kWhat, .type = "N",
     .help = "training steps; default for a capture: all of its steps", .member = at<&O::steps>(),
     .low = 1, .is_required = true},
    {.option = "--batch", .key = "batch", .place = 6, .group = kWhat, .type = "N",
     .help = "examples per step", .member = at<&O::batch>(), .of = kModels, .low = 1,
     .high = kLargestBatch, .is_required = true, .effect = kTraining, .setting = "batch"},
    {.option = "--cycle", .key = "cycle", .place = 24, .group = kWhat,
     .help = "for a capture: after its last step, start again at its first",
     .member = at<&O::cycle>(), .of = kCaptures,
     .refused = "only a capture can start again after its last step", .effect = kReplay,
     .setting = "cycle", .in_baselines = false},
    {.option = "--captured-order", .key = "captured_order", .place = 25, .group = kWhat,
     .type = "N,N,...",
     .help = "for a capture: its steps in this order, over and over; they count from 0",
     .member = at<&O::captured_order>(), .of = kCaptures,
     .refused = "only a capture has steps to order", .effect = kReplay,
     .setting = "captured order", .in_baselines = false},
    {.option = "--mode", .key = "mode", .place = 29, .group = kWhat, .type = "free|synced",
     .help = "whose weights a lane's step starts from", .member = word_at<&O::mode>(),
     .words = kModes, .is_required = true, .effect = kReplay, .setting = "mode",
     .told = kModesTold},
    {.option = "--decisions", .key = "decisions", .place = 30, .group = kWhat,
     .type = "recorded|own",
     .help = "for a capture: who chooses by values (experts, orders, comparisons)",
     .member = word_at<&O::decisions>(), .of = kCaptures,
     .refused = "only a capture has recorded decisions", .words = kDecisions, .effect = kReplay,
     .setting = "decisions", .told = kDecisionsTold},
    {.option = "--seed", .key = "seed", .place = 37, .group = kWhat, .type = "N",
     .help = "seed of weights, batches and noise", .member = at<&O::seed>(), .high = UINT64_MAX,
     .is_required = true, .effect = kDraw, .setting = "seed", .in_baselines = false},
    {.option = "--seeds", .key = "seeds", .place = 38, .group = kWhat, .type = "N",
     .help = "runs of the same lanes, from --seed, --seed + 1, ..., in one file",
     .member = at<&O::seeds>(), .low = 1, .high = 1000, .effect = kRepeat, .setting = "seeds",
     .in_baselines = false},
    {.option = "--nudge", .key = "nudge", .place = 39, .group = kWhat, .type = "N",
     .help = "start every weight one ulp up or down, by signs drawn from N; 0: as they are",
     .member = at<&O::nudge>(), .high = UINT64_MAX, .effect = kRepeat, .setting = "nudge",
     .in_baselines = false,
     .no_baseline = "the ensemble's own runs have it"},

    {.option = "--optimizer", .key = "optimizer", .place = 10, .group = kOptimizer, .type = "NAME",
     .help = "see `lockstep list optimizers`", .member = at<&O::optimizer>(), .of = kModels,
     .numbers = optimizer_numbers, .is_required = true, .effect = kTraining,
     .setting = "optimizer"},
    number_row("--lr", "lr"),
    number_row("--momentum", "momentum"),
    number_row("--beta1", "beta1"),
    number_row("--beta2", "beta2"),
    number_row("--eps", "eps"),
    number_row("--weight-decay", "weight_decay"),
    {.option = "--optimizer-args", .group = kOptimizer, .type = "K=V,...",
     .help = "any number of the optimizer, e.g. nesterov=1", .of = kModels,
     .parse = parse_optimizer_args,
     .printed = [](const RunOption& row, const RunOptions& options) {
       return printed_optimizer_args(row, run_options(), options);
     },
     .effect = kTraining},
    {.option = "--schedule", .key = "schedule", .place = 11, .group = kOptimizer,
     .type = "NAME[:K=V,...]", .help = "see `lockstep list schedules`",
     .member = at<&O::schedule>(), .of = kModels, .numbers = schedule_numbers,
     .parse = parse_schedule_option, .printed = printed_schedule, .effect = kTraining,
     .setting = "schedule"},
    {.option = "--group", .key = "groups", .place = 12, .group = kOptimizer,
     .type = "LAYERS:K=V,...",
     .help = "numbers, or optimizer=, for these layers only; repeatable",
     .member = at<&O::groups>(), .of = kModels, .repeats = true, .parse = parse_group_option,
     .printed = printed_groups, .effect = kTraining, .setting = "group"},

    {.option = "--accumulate", .key = "accumulate", .place = 7, .group = kLoop, .type = "N",
     .help = "micro-batches per step", .member = at<&O::accumulate>(), .of = kModels, .low = 1,
     .high = kLargestBatch, .effect = kTraining, .setting = "accumulate"},
    {.option = "--backward", .key = "backward", .place = 9, .group = kLoop,
     .type = "joint|per-loss",
     .help = "one backward pass, or one for each loss of a sum (detector, vae)",
     .member = word_at<&O::backward_per_loss>(), .words = kPasses, .effect = kTraining,
     .setting = "backward"},
    {.option = "--workers", .key = "workers", .place = 8, .group = kLoop, .type = "N",
     .help = "data-parallel workers, each with its part of the batch", .member = at<&O::workers>(),
     .of = kModels, .low = 1, .high = 4096, .effect = kTraining, .setting = "workers"},
    {.option = "--clip-norm", .key = "clip_norm", .place = 13, .group = kLoop, .type = "X",
     .help = "limit on the norm of all gradients; 0: no clipping", .member = at<&O::clip_norm>(),
     .of = kModels, .limit = kClipLimit, .effect = kTraining, .setting = "clipping",
     .setting_text = clipping_text},
    {.option = "--clip-norm-type", .key = "clip_norm_type", .place = 14, .group = kLoop,
     .type = "P",
     .help = "type of that norm: 2, 1, any p > 0, or inf (the largest gradient element)",
     .member = at<&O::clip_norm_type>(), .of = kModels,
     .limit = NumberLimit{.zero = false, .hint = "use 2, 1, inf or any p of a p-norm"}, .effect = kTraining},
    {.option = "--clip-value", .key = "clip_value", .place = 15, .group = kLoop, .type = "X",
     .help = "limit on the size of each gradient element; 0: no clipping",
     .member = at<&O::clip_value>(), .of = kModels, .limit = kClipLimit, .effect = kTraining},
    {.key = "clips_scaled", .place = 16, .help = "of a capture: its loop clips before unscaling",
     .member = at<&O::clips_scaled>(), .effect = kTraining},
    {.key = "loss_factor", .place = 17, .help = "of a capture: what it multiplies the loss with",
     .member = at<&O::loss_factor>(), .effect = kTraining,
     .setting = "factor of the loss"},
    {.option = "--freeze", .key = "freeze", .place = 18, .group = kLoop, .type = "GLOB,...",
     .help = "layers whose parameters are not trained", .member = at<&O::freeze>(),
     .effect = kTraining, .setting = "frozen layers"},
    {.option = "--eval-batch-norm", .key = "eval_batch_norm", .place = 19, .group = kLoop,
     .type = "GLOB,...", .help = "batch_norm layers in evaluation mode",
     .member = at<&O::eval_batch_norm>(), .effect = kTraining,
     .setting = "batch_norm in evaluation mode"},
    {.option = "--batch-norm-eps", .key = "batch_norm_eps", .place = 20, .group = kLoop,
     .type = "X", .help = "eps of every batch_norm; default: the model's own",
     .member = at<&O::batch_norm_eps>(), .none = "model's own", .effect = kTraining,
     .setting = "batch_norm eps", .setting_text = batch_norm_eps_text},
    {.option = "--rewrite", .key = "rewrites", .place = 21, .group = kLoop,
     .type = "NAME:NODE,...",
     .help = "rewrites of the graph: eps:NODE=X, with_logits:NODE, scale_first:NODE",
     .member = at<&O::rewrites>(), .effect = kReplay, .setting = "rewrites of the graph"},
    {.option = "--change", .key = "loop_changes", .place = 22, .group = kLoop, .type = "NAME=X,...",
     .help = "of a capture: other numbers of its loop: clip_norm, the optimizer's (eps, lr)",
     .member = at<&O::loop_changes>(), .of = kCaptures, .refused = "only for a capture",
     .instead = "a built-in model has options for its numbers", .effect = kReplay,
     .setting = "changed numbers of the loop"},
    {.option = "--start-from", .key = "start_from", .place = 26, .group = kLoop,
     .type = "RUN.state[:LANE]", .help = "start from the weights of another run's lane",
     .member = at<&O::start_from>(), .of = kModels, .effect = kDraw, .setting = "start_from",
     .setting_text = start_text, .in_baselines = false},
    {.key = "start_hash", .place = 27, .help = "of the weights started from",
     .member = at<&O::start_hash>(), .effect = kDraw},
    {.option = "--eval-policy", .key = "eval_policy", .place = 28, .group = kLoop,
     .type = "own|fp32", .help = "formats of held-out evaluations",
     .member = word_at<&O::eval_in_fp32>(), .of = kModels, .words = kEvalPolicies,
     .effect = kReplay, .setting = "eval policy", .in_baselines = false,
     .no_baseline = "no held-out examples are evaluated"},

    {.option = "--eval-every", .key = "eval_every", .place = 31, .group = kRecord, .type = "N",
     .help = "steps between held-out evaluations; 0: at the end", .member = at<&O::eval_every>(),
     .of = kModels, .is_required = true,
     .no_baseline = "no held-out examples are evaluated"},
    {.option = "--eval-examples", .key = "eval_examples", .place = 32, .group = kRecord,
     .type = "N",
     .help = "held-out examples per evaluation; 0: as many as were trained on",
     .member = at<&O::eval_examples>(), .of = kModels, .older = INT64_MAX,
     .no_baseline = "no held-out examples are evaluated"},  // all
    {.option = "--statistics", .key = "counts_between", .place = 40, .group = kRecord,
     .type = "full|health|none",
     .help = "what steps record: all statistics and errors; health: how many values roundings lost; "
             "nothing. The first step is full",
     .member = at<&O::measuring, &Measuring::counts_between>(), .parse = parse_statistics,
     .text = statistics_text, .only_if_set = true},
    {.option = "--statistics-every", .key = "statistics_every", .place = 33, .group = kRecord,
     .type = "N",
     .help = "full in every N-th step (0: the first alone), and in those in which numbers become "
             "infinite or NaN [1; with health or none: 0]",
     .member = at<&O::measuring, &Measuring::statistics_every>(),
     .printed = printed_statistics_every, .shows_default = false},
    {.option = "--watch", .key = "watch", .place = 41, .group = kRecord, .type = "GLOB,...",
     .help = "modules whose output every lane compares with the reference's in every step: error, "
             "and KL of log-probabilities; log_probs/NAME says that it holds such",
     .member = at<&O::watch>(), .only_if_set = true},
    {.option = "--histogram-every", .key = "histogram_every", .place = 34, .group = kRecord,
     .type = "N", .help = "steps between full histograms",
     .member = at<&O::measuring, &Measuring::histogram_every>(), .low = 1, .is_required = true},
    {.option = "--sums-every", .key = "sums_every", .place = 35, .group = kRecord, .type = "N",
     .help = "steps between exact recomputations of 64 outputs of every sum of products; 0: never",
     .member = at<&O::measuring, &Measuring::sums_every>(), .older = 0},
    {.option = "--checkpoint-every", .key = "checkpoint_every", .place = 36, .group = kRecord,
     .type = "N", .help = "steps between checkpoints", .member = at<&O::checkpoint_every>(),
     .low = 1, .is_required = true,
     .no_baseline = "the run files are not kept"},
    {.key = "capture_hash", .place = 23, .help = "SHA-256 of the capture",
     .member = at<&O::capture_hash>(), .effect = kTraining},
    {.key = "part", .place = 42, .help = "the module that a part's capture holds, by its path in the model",
     .member = at<&O::part>()},
};
// clang-format on

}  // namespace

std::span<const RunOption> run_options() {
  return kRows;
}

const void* address_of(const RunOption& row, const RunOptions& options) {
  return std::visit(
      [&](const auto& member) -> const void* {
        using T = std::remove_cvref_t<decltype(member)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, ChosenWord>) {
          return member.address(options);
        } else {
          return &member.of(options);
        }
      },
      row.member);
}

const RunOption& option_at(const RunOptions& options, const void* member) {
  for (const RunOption& row : kRows) {
    if (address_of(row, options) == member) return row;
  }
  throw std::logic_error("a member of RunOptions without a row");
}

}  // namespace lockstep

// See run_setup.h.
#include "src/train/run_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "emulation/kernels/active_kernels.h"
#include "src/core/counted.h"
#include "src/core/random.h"
#include "src/graph/rewrite/rewrite.h"
#include "src/policy/twin_lane.h"
#include "src/train/lane/lane_name.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_option_text.h"
#include "src/update/parameter_groups.h"

namespace lockstep {
namespace {

constexpr std::string_view kClipNorm = "clip_norm";

std::string hardware_of(const LaneDescription& lane) {
  return lane.target == lane.engine ? "" : lane.target;
}

// The reference first, the others in the given order.
std::vector<std::string> order_lanes(const std::vector<std::string>& lanes, ProblemList& problems) {
  std::vector<std::string> ordered = {std::string(kReferenceLane)};
  std::map<std::string, int> listed;
  for (std::string lane : lanes) {
    // Lanes with fixed names keep them: reports and checks find them by name.
    constexpr std::string_view kOwnEngine = "@software";
    if (lane.ends_with(kOwnEngine)) {
      const std::string name = lane.substr(0, lane.size() - kOwnEngine.size());
      if (name == kReferenceLane || name == kTruthLane || twin_number(name) > 0) lane = name;
    }
    if (++listed[lane] == 1 && lane != kReferenceLane) ordered.push_back(lane);
  }
  for (const auto& [lane, times] : listed) {
    if (times == 1) continue;
    problems.add(fmt::format("lane '{}': listed {}", lane,
                             times == 2 ? "twice" : fmt::format("{} times", times)));
  }
  return ordered;
}

// The same arithmetic under two names ("tf32,tf32:1") would be computed and shown twice.
void refuse_equal_lanes(const std::vector<LaneDescription>& lanes, ProblemList& problems) {
  for (size_t i = 0; i < lanes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const LaneDescription &a = lanes[j], &b = lanes[i];
      // An engine as target is in `engine`; hardware as target changes the accumulators.
      const bool same = a.policy.name == b.policy.name && a.policy.hash() == b.policy.hash() &&
                        a.engine == b.engine && hardware_of(a) == hardware_of(b);
      if (!same || a.name == b.name) continue;  // equal names are refused by order_lanes
      problems.add(
          fmt::format("lane '{}': the same as lane '{}', both are {} on {}", b.name, a.name,
                      b.policy.label(), b.target.empty() ? b.engine : b.target),
          a.is_reference ? "the reference always runs; leave the other name out" : "name it once");
      break;
    }
  }
}

// A policy may say how many workers it is for. All lanes of a run have as many, and all that say a
// number say the same. Batches of captures are those of one worker.
void settle_workers(std::vector<LaneDescription>& lanes, bool is_capture, RunOptions& options,
                    ProblemList& problems) {
  const auto option = option_name(&RunOptions::workers);
  std::string from = options.workers == 1 ? "" : fmt::format("{} {}", option, options.workers);
  for (LaneDescription& lane : lanes) {
    const std::optional<int64_t>& stated = lane.policy.all_reduce.workers;
    if (!stated) continue;
    const std::string what =
        fmt::format("lane '{}': [all_reduce] workers = {}", lane.name, *stated);
    if (is_capture && *stated != 1) {
      problems.add(what + ": a capture holds the batches of one worker", "leave workers out");
    } else if (from.empty()) {
      options.workers = *stated;
      from = what;
      for (const RunOption& row : run_options()) {
        if (row.option != option) continue;
        collect_problems(problems, [&] {
          whole_number(fmt::format("lane '{}': [all_reduce] workers", lane.name),
                       std::to_string(*stated), row.low, row.high);
        });
      }
      lane.policy.notes.push_back("its [all_reduce] gives all lanes of the run " +
                                  counted(static_cast<uint64_t>(*stated), "worker"));
    } else if (*stated != options.workers) {
      problems.add(fmt::format("{} and {}: a run has one number of workers", what, from),
                   "replay the policies in runs of their own");
    }
  }
  if (options.workers > 1 && options.batch % options.workers != 0) {
    problems.add(fmt::format("batch {}, workers {}: batch divisible by workers required",
                             options.batch, options.workers),
                 "batch is the global batch; every worker gets an equal part");
  }
}

// With delayed scaling, workers share the largest magnitude of every tensor over all workers.
void refuse_shared_amax(const std::vector<LaneDescription>& lanes, ProblemList& problems) {
  for (const LaneDescription& lane : lanes) {
    if (lane.policy.scaling.kind != ScalingKind::kDelayed) continue;
    problems.add("lane '" + lane.name +
                     "': delayed scaling with several workers, whose common amax is not modelled",
                 "use [scaling] kind = \"current\", or one worker");
  }
}

// Refuses policies that require separate scalers if there is one backward pass. (A kind's default
// does not require them.)
void refuse_separate_scalers(const std::vector<LaneDescription>& lanes, ProblemList& problems) {
  for (const LaneDescription& lane : lanes) {
    if (!lane.policy.loss_scale_use.per_loss.value_or(false)) continue;
    problems.add(
        "lane '" + lane.name +
            "': [loss_scale] per_loss = \"separate\" with one backward pass for all losses",
        fmt::format("{} per-loss, or leave per_loss out",
                    option_name(&RunOptions::backward_per_loss)));
  }
}

}  // namespace

void check_run_numbers(const RunOptions& options, ProblemList& problems) {
  for (const RunOption& row : run_options()) check_option(row, options, problems);
}

void refuse_options_of_captures(const RunOptions& options, ProblemList& problems) {
  for (const RunOption& row : run_options()) {
    const std::string text = option_text(row, options);
    if (row.of != OptionOf::kCaptures || text == option_text(row, RunOptions())) continue;
    const std::string word = row.words.empty() ? "" : " " + text;
    problems.add(fmt::format("{}{}: {}", row.option, word, row.refused), std::string(row.instead));
  }
  std::vector<std::string> optimizers = {options.optimizer.name};
  for (const ParameterGroup& group : options.groups) optimizers.push_back(group.optimizer.name);
  if (std::ranges::count(optimizers, recorded_updates().name) > 0) {
    problems.add(
        fmt::format("optimizer {}: only a capture has recorded updates", recorded_updates().name),
        "see `lockstep list optimizers`");
  }
}

std::vector<LaneDescription> describe_lanes(RunOptions& options, bool is_capture,
                                            ProblemList& problems) {
  std::vector<LaneDescription> lanes;
  options.lanes = order_lanes(options.lanes, problems);
  for (const std::string& lane : options.lanes) {
    const auto text = options.policy_texts.find(lane);
    const bool recorded = text != options.policy_texts.end();
    collect_problems(problems, [&] {
      lanes.push_back(describe_lane(lane, recorded ? &text->second : nullptr));
    });
  }
  refuse_equal_lanes(lanes, problems);
  settle_workers(lanes, is_capture, options, problems);
  if (options.workers > 1) refuse_shared_amax(lanes, problems);
  if (!options.backward_per_loss) refuse_separate_scalers(lanes, problems);
  problems.throw_if_any();
  return lanes;
}

void take_start(const std::map<std::string, Tensor>& start, std::map<std::string, Tensor>& initial,
                ProblemList& problems) {
  for (auto& [name, tensor] : initial) {
    const auto found = start.find(name);
    if (found == start.end()) {
      problems.add("start-from: '" + name + "' is missing", "the checkpoint is of another model");
    } else if (found->second.shape() != tensor.shape()) {
      problems.add("start-from: '" + name + "' has shape " + to_string(found->second.shape()) +
                       ", this model has " + to_string(tensor.shape()),
                   "the checkpoint is of another model");
    } else {
      tensor = found->second;
    }
  }
}

void change_loop(const HyperValues& changes, Capture& capture) {
  ProblemList problems("replay of capture '" + capture.path + "'");
  if (!changes.empty() && records_updates(capture)) {
    problems.add(
        fmt::format("{} {}: the updates of its optimizer, {}, are recorded and stay as they were",
                    option_name(&RunOptions::loop_changes), hyper_values_text(changes),
                    capture.optimizer_class),
        "capture again with the other number");
  }
  problems.throw_if_any();
  for (const auto& [name, value] : changes) {
    bool found = name == kClipNorm;
    for (CapturedStep& step : capture.steps) {
      if (name == kClipNorm) step.clip.max_norm = value;
      for (HyperValues& group : step.hyper) {
        const auto number = group.find(name);
        if (number == group.end()) continue;
        number->second = value;
        found = true;
      }
    }
    if (!found) {
      problems.add(fmt::format("{} {}: its optimizer, {}, has no such number",
                               option_name(&RunOptions::loop_changes), name, capture.optimizer),
                   "clip_norm and the optimizer's numbers can be changed");
    }
  }
  problems.throw_if_any();
}

void take_loop_options(const Capture& capture, CapturedLoop& loop, RunOptions& options) {
  ProblemList problems("replay of capture '" + capture.path + "'");
  const auto count = static_cast<int64_t>(capture.steps.size());
  if (options.steps == 0) options.steps = count;
  for (const int64_t step : options.captured_order) {
    if (step < 0 || step >= count) {
      problems.add(fmt::format("{} {}: its steps are 0 to {}",
                               option_name(&RunOptions::captured_order), step, count - 1));
    } else {
      loop.order.push_back(static_cast<size_t>(step));
    }
  }
  if (options.steps > count && !options.cycle && options.captured_order.empty()) {
    problems.add(
        fmt::format("{} {}: the capture has {}", option_name(&RunOptions::steps), options.steps,
                    count),
        fmt::format("{} starts again after the last one", option_name(&RunOptions::cycle)));
  }
  if (options.cycle && records_updates(capture)) {
    problems.add(fmt::format("{}: {}", option_name(&RunOptions::cycle),
                             is_inference(capture)
                                 ? "the capture is of inference, and the same passes give the same "
                                   "numbers again"
                                 : "the updates of this capture are recorded, and belong to the "
                                   "weights of their steps"),
                 "record more steps");
  }
  problems.throw_if_any();
  const CapturedStep& first = capture.steps.at(0);
  const auto& inputs = capture.graphs[loop.graphs.front()].inputs;
  const bool has_batch = !inputs.empty() && !inputs[0].type.shape.empty();
  options.batch = has_batch ? inputs[0].type.shape[0] : 1;
  options.accumulate = 1;
  for (const auto& of_step : loop.graph_of) {
    options.accumulate = std::max(options.accumulate, static_cast<int64_t>(of_step.size()));
  }
  options.capture_hash = capture.sha256;
  if (capture.part) {  // it has one step, from the run's own state
    options.part = capture.part->module;
    options.mode = LaneMode::kSynced;
  }
  options.data = "captured";
  options.optimizer = {capture.optimizer, first.hyper.at(0)};
  options.groups.clear();
  for (size_t g = 1; g < first.hyper.size(); ++g) {
    options.groups.push_back(
        {fmt::format("captured parameter group {}", g), {capture.optimizer, first.hyper[g]}});
  }
  options.clip_norm = first.clip.max_norm;
  options.clip_norm_type = first.clip.norm_type;
  options.clip_value = first.clip.max_value;
  options.clips_scaled = first.clip.scaled;
  options.loss_factor = first.micro.at(0).loss_mult;
}

void nudge_weights(const Graph& forward, uint64_t nudge, std::map<std::string, Tensor>& initial) {
  if (nudge == 0) return;
  uint32_t index = 0;
  for (const Parameter& p : forward.parameters) {
    const RandomStream signs(nudge, RandomPurpose::kTwin, index++);
    Tensor& weight = initial.at(p.name);
    active_kernels().f32.move_by_one_ulp(weight.as<float>().data(), signs, 0, weight.size());
  }
}

void change_layers(const RunOptions& options, Graph& forward, ProblemList& problems) {
  collect_problems(problems, [&] { freeze_layers(forward, options.freeze); });
  collect_problems(problems, [&] { set_eval_batch_norm(forward, options.eval_batch_norm); });
  collect_problems(problems, [&] {
    if (options.batch_norm_eps) set_batch_norm_eps(forward, *options.batch_norm_eps);
  });
  collect_problems(problems, [&] { apply_rewrites(forward, options.rewrites); });
}

}  // namespace lockstep

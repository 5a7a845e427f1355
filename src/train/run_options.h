// The options of a run as plain data, from the command line, a capture or a run file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/train/measuring.h"
#include "src/update/optimizer_spec.h"

namespace lockstep {

enum class LaneMode : uint8_t {
  kFree,    // every lane keeps its own weights, as in training
  kSynced,  // every step each lane restarts from the reference's state, rounded to its storage
};

// The choices that a capture's steps made by their values (topk, argmax, comparisons).
enum class Decisions : uint8_t {
  kRecorded,  // every lane follows what the captured loop chose
  kOwn,       // lanes choose by their own values, where a capture says that this is possible
};

struct RunOptions {
  std::string model = "lenet";
  std::map<std::string, double> sizes;        // of the model, where not the defaults
  std::string data;                           // "" = the model's default
  std::vector<std::string> lanes = {"fp32"};  // POLICY[:VERSION][@TARGET], "fp64", twins
  int64_t steps = 200, batch = 64;
  int64_t accumulate = 1;          // micro-batches of `batch` examples merged into one step
  int64_t workers = 1;             // data parallel: each gets an equal part of every batch
  bool backward_per_loss = false;  // a backward pass per named loss instead of one for all
  OptimizerSpec optimizer{"sgd", {}};
  ScheduleSpec schedule{"constant", {}};
  std::vector<ParameterGroup> groups;
  double clip_norm = 0, clip_value = 0;  // of the unscaled gradients; 0: not clipped
  // For a capture: its loop clips before unscaling, a mistake; and the factor of the first
  // micro-batch's loss before the backward pass.
  bool clips_scaled = false;
  double loss_factor = 1;
  double clip_norm_type = 2;                         // p of the p-norm; infinity: the largest
  std::vector<std::string> freeze, eval_batch_norm;  // globs over layers
  std::optional<double> batch_norm_eps;              // of every batch_norm; absent: the model's own
  // Rewrites of the graph, in this order (src/graph/rewrite/rewrite.h): "eps:n12=0.001".
  std::vector<std::string> rewrites;
  // For a capture: numbers that replace those of its loop in every step and group (the optimizer's
  // numbers and clip_norm).
  HyperValues loop_changes;
  std::string capture_hash;  // SHA-256 of the capture that `model` names, "": a built-in model
  std::string part;          // the path of its module in the large model, if it is a part's
  bool cycle = false;        // after the last captured step the first one follows
  // Indices of captured steps, taken in this order, over and over; empty: all in their own.
  std::vector<int64_t> captured_order;
  std::string start_from;     // RUN.state[:LANE], "" = fresh weights
  std::string start_hash;     // of its weights when the run began
  bool eval_in_fp32 = false;  // evaluate every lane's weights in FP32
  LaneMode mode = LaneMode::kFree;
  Decisions decisions = Decisions::kRecorded;
  int64_t eval_every = 0;  // 0: only at the end
  // Held-out examples per evaluation, or all if there are fewer; 0: as many as were trained on.
  int64_t eval_examples = 0;
  bool held_out = true;  // false: no evaluations, and no answers to judge a lane by
  Measuring measuring;
  // Values whose distance from the reference's is recorded in every step: globs over modules (their
  // outputs), and ids of nodes. Captures add what they name (src/graph/watched.h).
  std::vector<std::string> watch;
  int64_t checkpoint_every = 50;
  uint64_t seed = 1;
  // Every weight starts one ulp (FP32) up or down, by signs drawn from this number: an equally good
  // version of the same run. 0: as drawn, captured or read. Runs that differ in nothing else show
  // what rounding alone can do to every number of a run (analysis/check).
  uint64_t nudge = 0;
  // Runs of the same lanes in one run file, from seed, seed + 1, ... LockstepRun is one of them:
  // `seed` is its own.
  int64_t seeds = 1;
  // By lane: the TOML text of its policy file when the run began. A resumed run
  // (RunFile::options) uses these texts, even if the files have changed or gone. Empty: the files
  // are read.
  std::map<std::string, std::string> policy_texts;

  // The number of forward and backward passes in a step.
  int64_t micro_steps() const { return accumulate * workers; }
};

}  // namespace lockstep

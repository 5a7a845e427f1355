// Who may watch a run?
// Observers receive plain records after every step: statistics, never tensors. The run file, the
// progress bar and the tests are observers. An observer that throws ends the run.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "emulation/kernels/optimizer_args.h"
#include "emulation/stats/accumulator_health.h"
#include "emulation/stats/tensor_stats.h"
#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/lower/layer_facts.h"
#include "src/policy/policy.h"

namespace lockstep {

struct RunOptions;  // src/train/lockstep.h

struct LaneDescription {
  std::string name;  // as given on the command line
  Policy policy;
  std::string engine;  // "software"
  std::string target;  // "" or the text behind '@'
  bool is_reference = false;
  std::vector<std::string> fallbacks;  // kernels the engine lacked
  MemoryFacts memory;                  // what the recipe keeps on hardware
  std::vector<std::string> warnings;   // numbers of the run that its formats lose
  // The losses with a scaler each, in the order of their scalers; empty: one scaler for all.
  std::vector<std::string> scaler_losses;
};

// What is known before the first step; constant over the run.
struct RunDescription {
  const Graph* step_graph = nullptr;
  const SiteTable* sites = nullptr;
  const RunOptions* options = nullptr;
  std::vector<LaneDescription> lanes;  // the reference first
  std::string data;                    // DataSet::describe()
};

struct SiteRecord {
  bool measured = false;  // false: this lane lacks the site (count 0, NaN moments)
  double scale = 1;       // the factor by which the values are scaled
  TensorStats stats;
  ErrorStats error;
  AccumulatorHealth health;  // at accumulator sites, in steps that sample sums
  // Another micro-batch of the same step. Where its scale is another one (scaled casts), its
  // moments are brought to this one's; the histograms are added as they are.
  void merge(const SiteRecord& other);
};
// The error of the reference against itself: none.
ErrorStats error_of_reference(const TensorStats& stats);
struct ScalerRecord {
  double scale = 1;  // that applied in this step
  bool found_inf = false, skipped = false;
  int32_t growth_tracker = 0;  // after the step
  int32_t culprit_site = -1;  // first site in execution order with a non-finite value, if found_inf
};
struct UpdateRecord {
  bool measured = false;
  UpdateStats stats;
};
// Why a lane stopped before the others. The numbers stand in run files.
enum class DeathCause : int8_t {
  kAlive = 0,
  kWeights = 1,     // not finite any more
  kLossScaler = 2,  // its system stops training at the scale's minimum
};
struct LaneStep {
  bool alive = true;  // false: died earlier; everything below but died_of is unset
  DeathCause died_of = DeathCause::kAlive;
  double loss = 0;             // unscaled; the mean over the micro-batches
  std::vector<double> losses;  // the named ones, as loss_names()
  std::vector<double> lr;      // by parameter group
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();  // before clipping by norm
  // By parameter, of the gradients that the optimizer takes, unscaled and clipped; NaN: there is
  // none. Of captures alone, whose own lane has them; empty: not measured.
  std::vector<double> gradient_norms;
  double seconds = 0;  // of this lane's own work
  int32_t attempts = 1;
  // One per scaler (LaneDescription::scaler_losses), at least one (scale 1 without scaling); where
  // groups skip by themselves, one per group behind them.
  std::vector<ScalerRecord> scalers;
  std::vector<SiteRecord> sites;      // by site id
  std::vector<UpdateRecord> updates;  // by site id; measured at role kUpdate
};
struct StepRecord {
  int64_t step = 0;             // 0-based
  std::vector<LaneStep> lanes;  // as RunDescription::lanes
};
struct EvaluationRecord {
  int64_t steps_done = 0;              // training steps before it
  std::vector<double> loss, accuracy;  // per lane, held-out mean; NaN for a dead lane
  int64_t example_count = 0;
};

// Everything needed to go on from after step `steps_done - 1`.
struct LaneState {
  std::map<std::string, Tensor>
      tensors;  // "weight/NAME", "master/NAME", "state/NAME/k", "kahan/NAME", "buffer/NAME",
                // "scaling/NAME": scale, count and amaxes of a cast with delayed scaling
  std::vector<LossScaleState> scalers;
  std::vector<int64_t> optimizer_steps;  // by parameter group
  int64_t died_at = -1, nonfinite_since = -1;
  DeathCause died_of = DeathCause::kAlive;
};
struct RunState {
  int64_t steps_done = 0;
  std::vector<LaneState> lanes;
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_start(const RunDescription&) {}
  virtual void on_step(const StepRecord&) {}
  virtual void on_evaluation(const EvaluationRecord&) {}
  // Called after every `checkpoint_every` steps and after the last one.
  virtual void on_checkpoint(const RunState&) {}
  virtual void on_finish() {}
};

}  // namespace lockstep

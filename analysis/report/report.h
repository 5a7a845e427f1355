// All data of a report, read from a run file once, as plain data.
// Sections only arrange this data as text; they read no files and compute no numbers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/cost/lane_costs.h"
#include "analysis/faithful/captured_run.h"
#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/findings.h"
#include "analysis/pair/hardware_pair.h"
#include "analysis/parts/part_effects.h"
#include "analysis/ranges/scale_interval.h"
#include "analysis/report/lane_views.h"
#include "analysis/run/health.h"
#include "analysis/run/lane_outcomes.h"
#include "src/capture/capture.h"
#include "src/policy/twin_lane.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

struct Fix;

struct SkipEvent {
  int64_t step = -1;
  double scale = 1, scale_after = 1;
  int32_t culprit_site = -1;
};

struct GrowthEvent {
  int64_t step = -1;  // the last one with the old scale
  double scale = 1, scale_after = 1;
};

// One scaler: the lane's, or one loss's where every loss has its own.
struct ScalerReport {
  std::string loss;                  // the scaler's loss; empty: all losses
  std::vector<SkipEvent> overflows;  // found by this scaler, in steps that were skipped
  std::vector<GrowthEvent> growths;
  double final_scale = 1;
  std::vector<double> scales = {};  // by step, until the lane stopped
};

// The largest share of a site's nonzero values that was lost in a step that only counted.
struct CountedLoss {
  int32_t site = -1;  // -1: nothing was lost
  int64_t step = -1;
  double share = 0;
};

// How far a watched value is from the reference's.
struct WatchedReport {
  std::string name;
  WatchedStats equal = {};  // of all steps that begin with the reference's weights
  WatchedStats last = {};   // of the last step that computes it
  int64_t last_step = -1;   // -1: none does
  uint64_t nonfinite = 0;   // elements of all steps that are finite in the reference alone
};

// All but the judgement is of one seed: the first in which the lane broke, else the first.
struct LaneReport {
  LaneInfo info;
  LaneJudgement judgement;  // over all seeds
  uint64_t findings_seed = 1;
  std::vector<double> loss;  // by step
  std::vector<Evaluation> evaluations;
  // The last evaluation's share of correct answers; NaN: no evaluation, or all answers NaN.
  // Over several seeds: their mean.
  double accuracy = 0;
  double seconds = 0;  // of the lane's work, all steps; lanes may overlap
  // sqrt(sum (w - w_ref)^2 / sum w_ref^2) over all weights after the last measured step; NaN: not
  // measured.
  double weight_distance = 0;
  std::vector<int64_t> skips;             // the steps
  std::vector<ScalerReport> scalers;      // at least one
  bool has_scaler = false;                // some scale changed or is not 1
  int64_t nonfinite_loss_at = -1;         // first step whose loss is NaN or infinite, -1: none
  std::vector<LayerHealth> health;        // of the steps before that one
  CountedLoss counted_loss;               // of the same steps
  uint64_t repeated_attempts = 0;         // batches repeated with another loss scale
  std::vector<AccumulatorHealth> sums;    // by site, of the steps that sampled them
  DeviceWork device;                      // of the engine's device; no products: it has none
  std::vector<Stagnation> updates;        // by layer, of the same steps
  std::vector<Finding> findings;          // the gravest first
  std::vector<WatchedReport> watched;     // empty: nothing is, or this is the reference
  std::vector<PartEffect> parts;          // empty: not a run of parts, or PyTorch's own
  EqualStep equal = {};                   // a step begun with the reference's weights
  std::shared_ptr<const Fix> tried = {};  // what its remedies did; null: nobody ran them
  std::optional<CapturedComparison>
      beside_captured;                       // of emulated lanes, if there is a captured run
  std::optional<HardwarePair> beside_model;  // of a lane on a device, if its model ran, too
  LaneViews views = {};

  bool is_candidate() const { return lockstep::is_candidate(info); }
  bool is_twin() const { return twin_number(info.name) > 0; }  // noise, not a row of tables
  // PyTorch's recorded run: none of its sites was measured.
  bool is_captured() const { return info.name == kCapturedLane; }
};

struct Report {
  std::string path, command_line, data;
  RunOptions options;
  std::optional<Verification> verification;  // of the capture that was replayed
  std::map<std::string, std::string> environment;
  std::string damage;  // of the file, which has more steps after it; empty: none
  int64_t steps = 0;
  int64_t unmeasured_steps = 0;  // of them: without all statistics of sites
  int64_t last_measured = -1;    // the last step with statistics; -1: none
  SiteTable sites;
  std::vector<LaneReport> lanes;  // the reference first
  std::vector<int> twins;         // lane indices
  int truth = -1, captured = -1;  // lane indices, -1 when not run

  std::vector<ScaleLoss> scale_losses = {};  // of the reference's gradients
  std::vector<RangeTable> ranges = {};       // of the formats of 16 bits that a lane has
  CostView costs = {};

  std::vector<uint64_t> seeds = {1};       // on which the outcomes rest
  std::vector<uint64_t> unfinished_seeds;  // left out, because they have fewer steps
  std::vector<std::vector<double>> reference_losses = {};  // by seed and step; of several seeds
  // Whether the other steps have counts.
  bool counts_between() const { return options.measuring.counts_between; }
  int64_t measured_steps() const { return steps - unmeasured_steps; }
  bool has_several_seeds() const { return seeds.size() > 1; }

  const LaneReport& reference() const { return lanes.front(); }
  const Site& site(int32_t id) const { return sites.sites[static_cast<size_t>(id)]; }
};

// What the sentences of a lane's finding refer to.
inline FindingContext context_of(const Report& report, const LaneReport& lane,
                                 const Finding& finding) {
  return {finding,
          report.sites,
          lane.has_scaler,
          report.measured_steps(),
          report.unmeasured_steps == 0,
          lane.info.is_reference};
}

// Whether outcomes rest on all seeds of the file, or on the one that `run` reads.
enum class ReportSeeds : uint8_t { kAll, kThisOne };
// Whether the data of charts are read, too.
enum class ReportPictures : uint8_t { kAll, kNone };
// Requires: for kAll, `run` reads the file's first seed. Cost: reads every step's counts of every
// lane.
Report read_report(const RunFile& run, ReportSeeds which = ReportSeeds::kAll,
                   ReportPictures pictures = ReportPictures::kAll);

}  // namespace lockstep

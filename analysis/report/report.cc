// Fills a report from a run file.
#include "analysis/report/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "analysis/candidates/candidate.h"
#include "analysis/findings/drift.h"
#include "analysis/findings/intended_infinities.h"
#include "analysis/ranges/range_samples.h"
#include "analysis/run/nonfinite_counts.h"
#include "src/capture/capture.h"
#include "src/record/run/play.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool is_weight_after_update(const Site& site) {
  return site.role == Role::kWeight && site.node.starts_with("optimizer:");
}

void read_accuracy(LaneReport& out) {
  out.accuracy = kNan;
  if (held_out_of(out.evaluations).answers == 0) return;
  const Evaluation& last = out.evaluations.back();
  // Logits that are all NaN count as wrong answers, but a share of 0 would look like a measurement.
  if (last.accuracy > 0 || std::isfinite(last.loss)) out.accuracy = last.accuracy;
}

// sqrt(sum (w - w_ref)^2 / sum w_ref^2) over all weights after a step; NaN: not measured.
double distance_of_weights(const SiteTable& sites, const LaneStep& lane,
                           const LaneStep& reference) {
  double err = 0, ref = 0;
  for (const Site& site : sites.sites) {
    if (!is_weight_after_update(site)) continue;
    const auto id = static_cast<size_t>(site.id);
    const SiteRecord &own = lane.sites[id], &beside = reference.sites[id];
    // Pairs that are not finite are not in err_sq.
    if (own.stats.nan + own.stats.to_infinity > 0) return kNan;
    if (!own.measured || !beside.measured) return kNan;
    err += own.error.err_sq;
    ref += beside.stats.sum_sq;
  }
  return ref > 0 ? std::sqrt(err / ref) : kNan;
}

ScalerReport read_scaler(const std::vector<ScalerRecord>& scaler) {
  ScalerReport out;
  for (size_t i = 0; i < scaler.size(); ++i) {
    const ScalerRecord& now = scaler[i];
    if (!std::isfinite(now.scale)) break;  // the lane had stopped
    const double next = i + 1 < scaler.size() ? scaler[i + 1].scale : kNan;
    const auto step = static_cast<int64_t>(i);
    if (now.skipped && now.found_inf) {
      out.overflows.push_back({.step = step,
                               .scale = now.scale,
                               .scale_after = next,
                               .culprit_site = now.culprit_site});
    } else if (next > now.scale) {
      out.growths.push_back({.step = step, .scale = now.scale, .scale_after = next});
    }
    out.final_scale = now.scale;
    out.scales.push_back(now.scale);
  }
  return out;
}

CountedLoss largest_loss(const std::vector<SiteHealth>& sites) {
  CountedLoss largest;
  for (size_t i = 0; i < sites.size(); ++i) {
    const SiteHealth& h = sites[i];
    if (h.worst_step_rate <= largest.share) continue;
    largest = {static_cast<int32_t>(i), h.worst_step, h.worst_step_rate};
  }
  return largest;
}

// All that a report reads of one lane's steps. Once the loss is not finite every site holds NaN,
// which would hide what happened before.
class LaneTally : public Observer {
 public:
  // `parts` must outlive the object.
  LaneTally(const RunFile& run, int lane, ReportPictures pictures,
            const std::vector<PartPlaces>& parts)
      : effects(view_of(run), lane),
        run_(run),
        run_view_(view_of(run)),
        lane_(lane),
        findings_(run_view_, lane),
        health_(run.sites().sites.size()),
        counted_(run.sites().sites.size()),
        intended_(run.sites()),
        hardware_(run, lane) {
    out_.info = run_view_.lanes[static_cast<size_t>(lane)];
    out_.sums.resize(run.sites().sites.size());
    out_.weight_distance = out_.info.is_reference ? 0 : kNan;
    out_.scalers.resize(out_.info.scaler_count());
    if (!out_.info.is_reference && !out_.is_captured()) {
      for (const std::string& name : run.watched()) out_.watched.push_back({.name = name});
    }
    if (!parts.empty() && !out_.info.is_reference && !out_.is_captured()) {
      parts_.emplace(run, parts, lane);
    }
    if (pictures == ReportPictures::kAll && !out_.is_twin() && !out_.is_captured()) {
      views_.emplace(run, lane);
    }
  }

  void on_step(const StepRecord& record) override {
    const LaneStep& lane = record.lanes[static_cast<size_t>(lane_)];
    add_lane(record.step, lane);
    add_watched(record.step, lane);
    findings_.on_step(record);
    effects.on_step(record);
    hardware_.on_step(record);
    if (parts_) parts_->on_step(record);
    if (run_view_.options.measuring.samples_sums(record.step)) {
      for (size_t s = 0; s < out_.sums.size(); ++s) out_.sums[s].merge(lane.sites[s].health);
    }
    add_sites(record, lane);
  }

  // The report after the last step.
  LaneReport report() {
    LaneReport& out = out_;
    if (parts_) out.parts = parts_->effects();
    out.loss = run_.loss(lane_);
    out.evaluations = run_.evaluations(lane_);
    read_accuracy(out);
    if (out.is_captured()) out.seconds = kNan;
    out.skips = skipped_steps(run_.scalers(lane_));
    for (size_t i = 0; i < out.scalers.size(); ++i) {
      const std::vector<ScalerRecord> scaler = run_.scalers(lane_, i);
      out.scalers[i] = read_scaler(scaler);
      out.has_scaler = out.has_scaler || uses_loss_scale(scaler);
      if (!out.info.scaler_losses.empty()) out.scalers[i].loss = out.info.scaler_losses[i];
    }
    out.health = layer_health(run_view_.sites, health_.sites());
    out.counted_loss = largest_loss(counted_.sites());
    out.findings = findings_.findings();
    out.equal = findings_.equal_step();
    if (views_) out.views = views_->views(out.findings);
    out.device = run_.device(lane_);
    out.beside_model = hardware_.pair();
    return std::move(out);
  }

  LossEffectTally effects;

 private:
  void add_lane(int64_t step, const LaneStep& lane) {
    if (!lane.alive) return;
    out_.seconds += std::isfinite(lane.seconds) ? lane.seconds : 0;
    if (lane.attempts > 1) out_.repeated_attempts += static_cast<uint64_t>(lane.attempts - 1);
  }

  void add_watched(int64_t step, const LaneStep& lane) {
    for (size_t i = 0; i < out_.watched.size() && lane.alive; ++i) {
      const WatchedStats& now = lane.watched.at(i);
      if (now.count == 0) continue;
      WatchedReport& out = out_.watched[i];
      if (run_view_.has_same_weights(step)) out.equal.merge(now);
      out.last = now;
      out.last_step = step;
      out.nonfinite += now.nonfinite;
    }
  }

  void add_sites(const StepRecord& record, const LaneStep& lane) {
    const LaneStep& reference = record.lanes.front();
    if (record.is_measured && !out_.info.is_reference && !has_died_) {
      out_.weight_distance = distance_of_weights(run_view_.sites, lane, reference);
    }
    has_died_ = has_died_ || !lane.alive;
    const bool was_finite = out_.nonfinite_loss_at < 0;
    if (was_finite && has_nonfinite_loss(lane)) out_.nonfinite_loss_at = record.step;
    std::vector<NonfiniteCounts> nonfinite;
    if (was_finite) {
      nonfinite =
          out_.info.is_reference
              ? nonfinite_counts(lane.sites)
              : intended_.unintended(record.is_measured, run_view_.has_same_weights(record.step),
                                     lane.sites, reference.sites);
    }
    if (views_) views_->add(record, nonfinite);
    if (out_.nonfinite_loss_at >= 0) return;
    health_.add(record.step, record.is_measured, lane.sites, nonfinite);
    if (!record.is_measured) counted_.add(record.step, false, lane.sites, nonfinite);
    add_updates(run_view_.sites, lane.sites, out_.updates);
  }

  const RunFile& run_;
  const RunView run_view_;
  const int lane_;
  LaneReport out_;
  FindingTally findings_;
  HealthTally health_, counted_;  // counted: of steps that only counted
  IntendedInfinities intended_;
  HardwareTally hardware_;
  std::optional<LaneViewTally> views_;
  std::optional<PartTally> parts_;
  bool has_died_ = false;
};

// A loss scale that falls because of the op at which FP32 breaks as well is no fault of the lane.
void drop_shared_faults(Report& report) {
  const std::vector<Finding>& faults = report.reference().findings;
  if (faults.empty() || faults.front().site < 0) return;
  const auto place_of = [&](const Finding& finding) {
    const Site& site = report.site(finding.site);
    return std::tuple(site.layer, site.op.substr(0, site.op.find("_backward")), site.source_line);
  };
  for (LaneReport& lane : report.lanes) {
    if (lane.info.is_reference) continue;
    std::erase_if(lane.findings, [&](const Finding& f) {
      const bool is_of_scale =
          f.kind == FindingKind::kScaleCollapse || f.kind == FindingKind::kScaleFloor;
      return is_of_scale && f.site >= 0 && place_of(f) == place_of(faults.front());
    });
  }
}

// Explains lanes that did not train as well although nothing went wrong.
void explain_drift(const std::vector<std::unique_ptr<LaneTally>>& tallies, Report& report) {
  for (size_t l = 0; l < report.lanes.size(); ++l) {
    LaneReport& lane = report.lanes[l];
    const Verdict verdict = lane.judgement.verdict;
    const bool is_behind =
        verdict == Verdict::kStalled || verdict == Verdict::kWorse || verdict == Verdict::kUnclear;
    if (!is_behind || !lane.is_candidate() || !lane.findings.empty()) continue;
    const auto drift =
        find_drift(static_cast<int>(l), tallies[l]->effects, report.sites, lane.info.site_formats);
    if (drift && drift->value >= kLeastDrift * drift->share * lane.judgement.gap) {
      lane.findings.push_back(*drift);
    }
  }
}

// The ranges of the formats that autocast has and that a lane holds gradients in.
std::vector<RangeTable> read_ranges(const RunFile& run, const std::vector<uint64_t>& zeros) {
  std::vector<RangeTable> out;
  for (const BaseFormat& base : base_formats()) {
    const std::string format(base.format);
    if (!has_16_bits(format)) continue;
    const bool is_used = std::ranges::any_of(run.lanes(), [&](const LaneInfo& lane) {
      return std::ranges::count(lane.site_formats, format) > 0;
    });
    if (!is_used) continue;
    RangeTable ranges =
        make_range_table(range_samples(run, autocast_policy(format), zeros), find_format(format));
    if (!ranges.layers.empty()) out.push_back(std::move(ranges));
  }
  return out;
}

// One play for each seed of which a lane is shown: a lane that broke in the first seed in which it
// did, all others in the one that `run` reads.
std::vector<std::unique_ptr<LaneTally>> play_lanes(const RunFile& run,
                                                   const std::vector<LaneJudgement>& judged,
                                                   const std::vector<uint64_t>& seeds,
                                                   ReportPictures pictures,
                                                   const std::vector<PartPlaces>& parts,
                                                   ZeroTally& zeros,
                                                   std::map<int64_t, RunFile>& other_seeds) {
  std::vector<std::unique_ptr<LaneTally>> tallies;
  std::map<int64_t, std::vector<Observer*>> observers;  // by seed
  observers[0].push_back(&zeros);
  for (size_t lane = 0; lane < judged.size(); ++lane) {
    const int64_t seed = std::max<int64_t>(0, judged[lane].first_broken);
    const bool is_other = seed > 0;
    if (is_other && !other_seeds.contains(seed)) {
      other_seeds.emplace(seed, RunFile(run.path(), false, seeds[static_cast<size_t>(seed)]));
    }
    const RunFile& of = is_other ? other_seeds.at(seed) : run;
    tallies.push_back(std::make_unique<LaneTally>(of, static_cast<int>(lane), pictures, parts));
    observers[seed].push_back(tallies.back().get());
  }
  for (const auto& [seed, of_seed] : observers) {
    const RunFile& of = seed > 0 ? other_seeds.at(seed) : run;
    play(of, every_lane(of), of_seed);
  }
  return tallies;
}

// Mean over the seeds of the share of correct answers; NaN if some seed has none.
double mean_accuracy(const std::vector<SeedCourses>& seeds, size_t lane) {
  double sum = 0;
  for (const SeedCourses& seed : seeds) {
    const HeldOut& answers = seed.lanes[lane].held_out;
    if (answers.answers == 0) return kNan;
    sum += static_cast<double>(answers.correct) / static_cast<double>(answers.answers);
  }
  return sum / static_cast<double>(seeds.size());
}

}  // namespace

Report read_report(const RunFile& run, ReportSeeds which, ReportPictures pictures) {
  Report report{.path = run.path(),
                .command_line = run.command_line(),
                .data = run.data(),
                .options = run.options(),
                .verification = run.verification(),
                .environment = run.environment(),
                .damage = run.damage(),
                .steps = run.steps(),
                .unmeasured_steps = run.steps() - run.measured_steps(),
                .last_measured = run.last_measured(run.steps() - 1),
                .sites = run.sites(),
                .lanes = {},
                .twins = {},
                .seeds = {},
                .unfinished_seeds = {}};
  const bool several = which == ReportSeeds::kAll && run.seeds().size() > 1;
  const std::vector<SeedCourses> courses =
      several ? read_all_courses(run) : std::vector<SeedCourses>{read_courses(run)};
  for (const SeedCourses& seed : courses) {
    report.seeds.push_back(seed.seed);
    if (several) report.reference_losses.push_back(seed.lanes.front().loss);
  }
  // Those that were asked for, also where the file has lost them or never had them.
  for (int64_t k = 0; which == ReportSeeds::kAll && k < run.options().seeds; ++k) {
    const uint64_t seed = run.options().seed + static_cast<uint64_t>(k);
    if (std::ranges::count(report.seeds, seed) == 0) report.unfinished_seeds.push_back(seed);
  }
  const std::vector<LaneJudgement> judged = judge_lanes(courses);
  const std::vector<PartPlaces> parts = part_places(run);
  ZeroTally zeros(run.sites().sites.size());
  std::map<int64_t, RunFile> other_seeds;  // by place among the report's seeds
  std::vector<std::unique_ptr<LaneTally>> tallies =
      play_lanes(run, judged, report.seeds, pictures, parts, zeros, other_seeds);
  for (size_t lane = 0; lane < tallies.size(); ++lane) {
    LaneReport& now = report.lanes.emplace_back(tallies[lane]->report());
    now.judgement = judged[lane];
    now.findings_seed =
        report.seeds[static_cast<size_t>(std::max<int64_t>(0, judged[lane].first_broken))];
    if (several) now.accuracy = mean_accuracy(courses, lane);
    if (now.is_twin()) report.twins.push_back(static_cast<int>(lane));
    if (now.info.name == kTruthLane) report.truth = static_cast<int>(lane);
    if (now.is_captured()) report.captured = static_cast<int>(lane);
  }
  for (size_t lane = 0; report.captured >= 0 && lane < report.lanes.size(); ++lane) {
    if (report.lanes[lane].is_captured()) continue;
    report.lanes[lane].beside_captured =
        compare_with_captured(run, static_cast<int>(lane), report.captured);
  }
  drop_shared_faults(report);
  explain_drift(tallies, report);
  // Gradients of a reference that went wrong say nothing.
  if (report.reference().nonfinite_loss_at < 0) {
    if (pictures == ReportPictures::kAll) {
      report.scale_losses = scale_losses(run, report.reference().views.exponents);
    }
    report.ranges = read_ranges(run, zeros.zeros());
  }
  report.costs = read_costs(run, find_gpu(kDefaultGpu));
  return report;
}

}  // namespace lockstep

// Fills a report from a run file.
#include "analysis/report/report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/findings/drift.h"
#include "analysis/findings/intended_infinities.h"
#include "analysis/run/run_data.h"
#include "analysis/search/recommend.h"
#include "src/capture/capture.h"

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

double weight_distance(const RunFile& run, int lane) {
  const int64_t died_at = run.lanes()[static_cast<size_t>(lane)].died_at;
  const int64_t last =
      run.last_measured(died_at >= 0 ? std::min(died_at, run.steps() - 1) : run.steps() - 1);
  if (last < 0) return kNan;
  const std::vector<double> err_sq = run.moment(lane, "err_sq", last);
  const std::vector<double> ref_sq = run.moment(0, "sum_sq", last);
  const std::vector<uint64_t> nan = run.count(lane, "nan", last);
  const std::vector<uint64_t> infinite = run.count(lane, "to_infinity", last);
  double err = 0, ref = 0;
  for (const Site& site : run.sites().sites) {
    if (!is_weight_after_update(site)) continue;
    const auto id = static_cast<size_t>(site.id);
    if (nan[id] + infinite[id] > 0) return kNan;  // pairs that are not finite are not in err_sq
    err += err_sq[id];
    ref += ref_sq[id];
  }
  return ref > 0 ? std::sqrt(err / ref) : kNan;
}

ScalerReport read_scaler(const std::vector<ScalerRecord>& scaler, bool& moves) {
  ScalerReport out;
  for (size_t i = 0; i < scaler.size(); ++i) {
    const ScalerRecord& now = scaler[i];
    if (!std::isfinite(now.scale)) break;  // the lane had stopped
    const double next = i + 1 < scaler.size() ? scaler[i + 1].scale : kNan;
    if (now.scale != 1) moves = true;
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
  if (!out.overflows.empty() || !out.growths.empty()) moves = true;
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

// Once the loss is not finite every site holds NaN, which would hide what happened before.
void read_health(const RunFile& run, int lane, LaneReport& out) {
  HealthTally tally(run.sites().sites.size()), counted(run.sites().sites.size());
  IntendedInfinities intended(run.sites());
  const int64_t end = out.nonfinite_loss_at >= 0 ? out.nonfinite_loss_at + 1 : run.steps();
  for (int64_t step = 0; step < end; ++step) {
    if (!run.has_counts(step)) continue;
    const StepCounts counts = intended.read_counts(run, lane, step);
    if (step != out.nonfinite_loss_at) {
      tally.add(step, counts);
      if (!counts.is_measured) counted.add(step, counts);
      add_updates(run.sites(), run.updates(lane, step), out.updates);
    }
  }
  out.health = layer_health(run.sites(), tally.sites());
  out.counted_loss = largest_loss(counted.sites());
}

LaneReport read_lane(const RunFile& run, int lane, ReportPictures pictures) {
  LaneReport out;
  out.info = run.lanes()[static_cast<size_t>(lane)];
  out.loss = run.loss(lane);
  out.evaluations = run.evaluations(lane);
  read_accuracy(out);
  for (const double s : run.seconds(lane)) out.seconds += std::isfinite(s) ? s : 0;
  if (out.is_captured()) out.seconds = std::numeric_limits<double>::quiet_NaN();
  out.weight_distance = out.info.is_reference ? 0 : weight_distance(run, lane);
  const std::vector<ScalerRecord> scalers = run.scalers(lane);
  out.skips = skipped_steps(scalers);
  for (size_t i = 0; i < out.info.scaler_count(); ++i) {
    out.scalers.push_back(read_scaler(run.scalers(lane, i), out.has_scaler));
    if (!out.info.scaler_losses.empty()) out.scalers.back().loss = out.info.scaler_losses[i];
  }
  out.nonfinite_loss_at = first_nonfinite_loss(out.loss, scalers);
  read_health(run, lane, out);
  out.findings = find_findings(run, lane);
  if (pictures == ReportPictures::kAll && !out.is_twin() && !out.is_captured()) {
    const bool ends = out.nonfinite_loss_at >= 0;
    out.views =
        read_lane_views(run, lane, out.findings, ends ? out.nonfinite_loss_at + 1 : run.steps());
  }
  out.sums = run.sums(lane);
  out.device = run.device_work(lane);
  out.device.kinds = run.device_products(lane);
  out.beside_model = compare_with_model(run, lane);
  for (const int32_t attempts : run.attempts(lane)) {
    if (attempts > 1) out.repeated_attempts += static_cast<uint64_t>(attempts - 1);
  }
  return out;
}

// Explains lanes that did not train as well although nothing went wrong.
void explain_drift(const RunFile& run, Report& report) {
  for (size_t l = 0; l < report.lanes.size(); ++l) {
    LaneReport& lane = report.lanes[l];
    const Verdict verdict = lane.judgement.verdict;
    const bool is_behind =
        verdict == Verdict::kStalled || verdict == Verdict::kWorse || verdict == Verdict::kUnclear;
    if (!is_behind || !lane.is_candidate() || !lane.findings.empty()) continue;
    const int index = static_cast<int>(l);
    const auto drift =
        find_drift(index, run.loss_effects(index), report.sites, lane.info.site_formats);
    if (drift && drift->value >= kLeastDrift * drift->share * lane.judgement.gap) {
      lane.findings.push_back(*drift);
    }
  }
}

// The ranges of the formats that autocast has and that a lane holds gradients in.
std::vector<RangeTable> read_ranges(const RunFile& run) {
  std::vector<RangeTable> out;
  for (const BaseFormat& base : base_formats()) {
    const std::string format(base.format);
    if (!has_16_bits(format)) continue;
    const bool is_used = std::ranges::any_of(run.lanes(), [&](const LaneInfo& lane) {
      return std::ranges::count(lane.site_formats, format) > 0;
    });
    if (!is_used) continue;
    RangeTable ranges = recommend(run, format).ranges;
    if (!ranges.layers.empty()) out.push_back(std::move(ranges));
  }
  return out;
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
  for (const uint64_t seed : run.seeds()) {
    if (several && std::ranges::count(report.seeds, seed) == 0) {
      report.unfinished_seeds.push_back(seed);
    }
  }
  const std::vector<LaneJudgement> judged = judge_lanes(courses);
  for (int lane = 0; lane < static_cast<int>(run.lanes().size()); ++lane) {
    const LaneJudgement& judgement = judged[static_cast<size_t>(lane)];
    // A lane that broke is shown in the first seed in which it did.
    if (judgement.first_broken > 0) {
      const uint64_t seed = report.seeds[static_cast<size_t>(judgement.first_broken)];
      report.lanes.push_back(read_lane(RunFile(run.path(), false, seed), lane, pictures));
    } else {
      report.lanes.push_back(read_lane(run, lane, pictures));
    }
    LaneReport& now = report.lanes.back();
    now.judgement = judgement;
    now.findings_seed =
        report.seeds[static_cast<size_t>(std::max<int64_t>(0, judgement.first_broken))];
    if (several) now.accuracy = mean_accuracy(courses, static_cast<size_t>(lane));
    if (now.is_twin()) report.twins.push_back(lane);
    if (now.info.name == kTruthLane) report.truth = lane;
    if (now.is_captured()) report.captured = lane;
  }
  for (size_t lane = 0; report.captured >= 0 && lane < report.lanes.size(); ++lane) {
    if (report.lanes[lane].is_captured()) continue;
    report.lanes[lane].beside_captured =
        compare_with_captured(run, static_cast<int>(lane), report.captured);
  }
  explain_drift(run, report);
  // Gradients of a reference that went wrong say nothing.
  if (report.reference().nonfinite_loss_at < 0) {
    if (pictures == ReportPictures::kAll) {
      report.scale_losses = scale_losses(run, report.reference().views.exponents);
    }
    report.ranges = read_ranges(run);
  }
  report.costs = read_costs(run, find_gpu(kDefaultGpu));
  return report;
}

}  // namespace lockstep

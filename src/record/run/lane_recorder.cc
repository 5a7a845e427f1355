#include "src/record/run/lane_recorder.h"

#include <algorithm>
#include <limits>

#include "src/core/text.h"
#include "src/record/run/layout.h"
#include "src/train/lockstep.h"

namespace lockstep {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A dead lane's record may leave its sites out.
const SiteRecord* measured_site(const LaneStep& lane, int64_t site) {
  const size_t i = static_cast<size_t>(site);
  if (!lane.alive || i >= lane.sites.size() || !lane.sites[i].measured) return nullptr;
  return &lane.sites[i];
}

}  // namespace

std::vector<uint64_t> bits_hash_row(const LaneStep& lane, int64_t site_count) {
  std::vector<uint64_t> row(static_cast<size_t>(site_count), 0);
  for (int64_t s = 0; s < site_count; ++s) {
    const SiteRecord* site = measured_site(lane, s);
    if (site != nullptr) row[static_cast<size_t>(s)] = site->stats.bits_hash;
  }
  return row;
}

LaneExtent lane_extent(const RunDescription& description, const LaneDescription& lane) {
  const int64_t groups = static_cast<int64_t>(description.options->groups.size()) + 1;
  LaneExtent extent{static_cast<int64_t>(description.sites->sites.size()),
                    description.options->histogram_every,
                    description.options->sums_every,
                    groups,
                    loss_names(*description.step_graph),
                    {},
                    lane.scaler_losses,
                    lane.policy.loss_scale_use.skip_by_group ? groups : 0,
                    0};
  if (!description.options->capture_hash.empty()) {
    extent.gradient_norms = static_cast<int64_t>(description.step_graph->parameters.size());
  }
  for (const Site& site : description.sites->sites) extent.stat_exempt.push_back(site.stat_exempt);
  return extent;
}

LaneRecorder LaneRecorder::create(hid_t lanes, const LaneDescription& lane, int64_t index,
                                  const LaneExtent& extent) {
  LaneRecorder r;
  r.group_ = hdf5::create_group(lanes, layout::escape(lane.name));
  const hid_t group = r.group_.id();
  hdf5::write_attribute(group, layout::kIndex, index);
  hdf5::write_attribute(group, layout::kEngine, lane.engine);
  hdf5::write_attribute(group, layout::kTarget, lane.target);
  hdf5::write_attribute(group, layout::kIsReference, int64_t{lane.is_reference});
  std::string fallbacks;
  for (const std::string& kernel : lane.fallbacks) {
    fallbacks += (fallbacks.empty() ? "" : ",") + kernel;
  }
  hdf5::write_attribute(group, layout::kFallbacks, fallbacks);
  hdf5::write_attribute(group, layout::kDiedAt, int64_t{-1});
  hdf5::write_attribute(group, layout::kDiedOf, int64_t{0});
  hdf5::write_attribute(group, layout::kPolicyHash, layout::hex(lane.policy.hash()));
  // The captured lane kept its tensors on a machine that nobody asked.
  if (lane.memory != MemoryFacts{}) {
    hdf5::write_attribute(group, layout::kMemory, to_json(lane.memory));
  }
  hdf5::write_text(group, layout::kPolicy, lane.policy.text);
  r.extent_ = extent;
  r.site_count_ = extent.sites;
  r.sums_.assign(static_cast<size_t>(extent.sites * kHistogramBins), 0);
  r.make(group, true);
  return r;
}

LaneRecorder LaneRecorder::open(hid_t lanes, const LaneDescription& lane, const LaneExtent& extent,
                                int64_t steps_complete, std::vector<uint64_t> unfinished_sums) {
  LaneRecorder r;
  r.group_ = hdf5::open_group(lanes, layout::escape(lane.name));
  r.extent_ = extent;
  r.site_count_ = extent.sites;
  r.sums_ = std::move(unfinished_sums);
  r.make(r.group_.id(), false);
  // Records and sums of steps that were never completed are written again.
  while (r.histogram_records_ < r.histogram_step_.rows()) {
    int64_t step = 0;
    r.histogram_step_.read(r.histogram_records_, &step);
    if (step >= steps_complete) break;
    ++r.histogram_records_;
  }
  const int64_t died_at = hdf5::int_attribute(r.group_.id(), layout::kDiedAt);
  r.died_ = died_at >= 0 && died_at < steps_complete;
  if (!r.died_) {
    hdf5::write_attribute(r.group_.id(), layout::kDiedAt, int64_t{-1});
    hdf5::write_attribute(r.group_.id(), layout::kDiedOf, int64_t{0});
  }
  return r;
}

void LaneRecorder::make(hid_t group, bool create) {
  const auto subgroup = [&](const char* name) {
    return create ? hdf5::create_group(group, name) : hdf5::open_group(group, name);
  };
  const auto dataset = [&](GrowingDataset& out, hid_t parent, const std::string& name, hid_t type,
                           const std::vector<int64_t>& shape, bool wide) {
    out = create ? GrowingDataset::create(parent, name, type, shape, wide)
                 : GrowingDataset::open(parent, name);
  };
  const auto series = [&](GrowingDataset& out, hid_t parent, const char* name, hid_t type) {
    dataset(out, parent, name, type, {}, false);
  };
  const auto per_scaler = [&](GrowingDataset& out, hid_t parent, const char* name, hid_t type) {
    dataset(out, parent, name, type, {extent_.scaler_columns()}, false);
  };
  const auto per_site = [&](GrowingDataset& out, hid_t parent, std::string_view name, hid_t type) {
    dataset(out, parent, std::string(name), type, {site_count_}, true);
  };

  series(loss_, group, "loss", H5T_NATIVE_DOUBLE);
  series(seconds_, group, "seconds", H5T_NATIVE_DOUBLE);
  series(attempts_, group, "attempts", H5T_NATIVE_INT32);
  dataset(lr_, group, "lr", H5T_NATIVE_DOUBLE, {extent_.groups}, false);
  series(gradient_norm_, group, "gradient_norm", H5T_NATIVE_DOUBLE);
  if (extent_.gradient_norms > 0) {
    dataset(gradient_norms_, group, layout::kGradientNorms, H5T_NATIVE_DOUBLE,
            {extent_.gradient_norms}, false);
  }
  const hdf5::Handle losses = subgroup("losses");
  for (const std::string& name : extent_.losses) {
    dataset(losses_.emplace_back(), losses.id(), layout::escape(name), H5T_NATIVE_DOUBLE, {},
            false);
  }

  const hdf5::Handle eval = subgroup("eval");
  series(eval_steps_done_, eval.id(), "steps_done", H5T_NATIVE_INT64);
  series(eval_loss_, eval.id(), "loss", H5T_NATIVE_DOUBLE);
  series(eval_accuracy_, eval.id(), "accuracy", H5T_NATIVE_DOUBLE);
  series(eval_count_, eval.id(), "example_count", H5T_NATIVE_INT64);

  const hdf5::Handle scaler = subgroup("loss_scale");
  if (!extent_.scaler_losses.empty()) {
    hdf5::write_attribute(scaler.id(), layout::kScalerLosses, join(extent_.scaler_losses, ","));
  }
  per_scaler(scaler_scale_, scaler.id(), "scale", H5T_NATIVE_DOUBLE);
  per_scaler(found_inf_, scaler.id(), "found_inf", H5T_NATIVE_UINT8);
  per_scaler(skipped_, scaler.id(), "skipped", H5T_NATIVE_UINT8);
  per_scaler(growth_tracker_, scaler.id(), "growth_tracker", H5T_NATIVE_INT32);
  per_scaler(culprit_site_, scaler.id(), "culprit_site", H5T_NATIVE_INT32);

  per_site(scale_, group, "scale", H5T_NATIVE_DOUBLE);
  per_site(bits_hash_, group, "bits_hash", H5T_NATIVE_UINT64);
  const hdf5::Handle counts = subgroup("counts"), moments = subgroup("moments");
  for (const Statistic& statistic : statistics()) {
    const bool is_count = statistic.kind == StatisticKind::kCount;
    per_site(statistics_.emplace_back(), is_count ? counts.id() : moments.id(), statistic.name,
             is_count ? H5T_NATIVE_UINT64 : H5T_NATIVE_DOUBLE);
  }

  const hdf5::Handle updates = subgroup("updates");
  per_site(stagnant_, updates.id(), "stagnant", H5T_NATIVE_UINT64);
  per_site(update_count_, updates.id(), "count", H5T_NATIVE_UINT64);
  per_site(update_sq_, updates.id(), "update_sq", H5T_NATIVE_DOUBLE);
  per_site(weight_sq_, updates.id(), "weight_sq", H5T_NATIVE_DOUBLE);

  const hdf5::Handle sums = subgroup(layout::kSums);
  series(sums_step_, sums.id(), "step", H5T_NATIVE_INT64);
  for (const HealthColumn& column : health_columns()) {
    per_site(health_.emplace_back(), sums.id(), column.name,
             column.count != nullptr ? H5T_NATIVE_UINT64 : H5T_NATIVE_DOUBLE);
  }

  const std::vector<int64_t> bins = {site_count_, kHistogramBins};
  dataset(histogram_, group, layout::kHistogram, H5T_NATIVE_UINT32, bins, true);
  series(histogram_step_, group, layout::kHistogramStep, H5T_NATIVE_INT64);
  dataset(histogram_50_, group, layout::kHistogram50, H5T_NATIVE_UINT64, bins, true);
  series(histogram_50_steps_, group, layout::kHistogram50Steps, H5T_NATIVE_INT64);
}

void LaneRecorder::write_step(int64_t step, const LaneStep& lane) {
  if (!lane.alive && !died_) {
    died_ = true;
    hdf5::write_attribute(group_.id(), layout::kDiedAt, step);
    hdf5::write_attribute(group_.id(), layout::kDiedOf, static_cast<int64_t>(lane.died_of));
  }
  const int64_t block = step / layout::kHistogramBlock;
  if (!short_row_dropped_ && block < histogram_50_steps_.rows()) {
    const int64_t nothing = 0;  // a short row of an earlier stop is outdated from here on
    histogram_50_steps_.write(block, &nothing);
  }
  short_row_dropped_ = true;
  const double loss = lane.alive ? lane.loss : kNaN;
  const double seconds = lane.alive ? lane.seconds : 0;
  const int32_t attempts = lane.alive ? lane.attempts : 0;
  loss_.write(step, &loss);
  seconds_.write(step, &seconds);
  attempts_.write(step, &attempts);
  write_rates(step, lane);
  write_scalers(step, lane);
  write_sites(step, lane);
  write_updates(step, lane);
  if (extent_.sums_every > 0 && step % extent_.sums_every == 0) write_sums_sampled(step, lane);
  if (keeps_histogram(step, lane)) write_histogram(step, lane);
  add_to_sums(lane);
  if ((step + 1) % layout::kHistogramBlock == 0) {
    write_sums(step + 1);
    sums_.assign(sums_.size(), 0);
  }
}

void LaneRecorder::pass_step(int64_t step, const LaneStep& lane) {
  add_to_sums(lane);
  if ((step + 1) % layout::kHistogramBlock == 0) sums_.assign(sums_.size(), 0);
}

std::vector<uint64_t> LaneRecorder::recorded_bits_hash(int64_t step) const {
  std::vector<uint64_t> row(static_cast<size_t>(site_count_));
  bits_hash_.read(step, row.data());
  return row;
}

// NaN where a lane is dead or has none.
void LaneRecorder::write_rates(int64_t step, const LaneStep& lane) {
  std::vector<double> lr(static_cast<size_t>(extent_.groups), kNaN);
  std::vector<double> losses(losses_.size(), kNaN);
  if (lane.alive) {
    std::copy_n(lane.lr.begin(), std::min(lr.size(), lane.lr.size()), lr.begin());
    std::copy_n(lane.losses.begin(), std::min(losses.size(), lane.losses.size()), losses.begin());
  }
  const double norm = lane.alive ? lane.gradient_norm : kNaN;
  lr_.write(step, lr.data());
  gradient_norm_.write(step, &norm);
  for (size_t i = 0; i < losses.size(); ++i) losses_[i].write(step, &losses[i]);
  if (extent_.gradient_norms == 0) return;
  std::vector<double> norms(static_cast<size_t>(extent_.gradient_norms), kNaN);
  if (lane.alive) {
    std::copy_n(lane.gradient_norms.begin(), std::min(norms.size(), lane.gradient_norms.size()),
                norms.begin());
  }
  gradient_norms_.write(step, norms.data());
}

void LaneRecorder::write_scalers(int64_t step, const LaneStep& lane) {
  std::vector<double> scale;
  std::vector<uint8_t> found_inf, skipped;
  std::vector<int32_t> growth_tracker, culprit_site;
  for (size_t i = 0; i < static_cast<size_t>(extent_.scaler_columns()); ++i) {
    ScalerRecord scaler;
    scaler.scale = kNaN;
    if (lane.alive && i < lane.scalers.size()) scaler = lane.scalers[i];
    scale.push_back(scaler.scale);
    found_inf.push_back(scaler.found_inf);
    skipped.push_back(scaler.skipped);
    growth_tracker.push_back(scaler.growth_tracker);
    culprit_site.push_back(scaler.culprit_site);
  }
  scaler_scale_.write(step, scale.data());
  found_inf_.write(step, found_inf.data());
  skipped_.write(step, skipped.data());
  growth_tracker_.write(step, growth_tracker.data());
  culprit_site_.write(step, culprit_site.data());
}

void LaneRecorder::write_sites(int64_t step, const LaneStep& lane) {
  // One pass over the sites: a record is over 2 KB, so walking them once per statistic is slow.
  const size_t n = static_cast<size_t>(site_count_);
  const auto table = statistics();
  std::vector<std::vector<uint64_t>> counts(table.size());
  std::vector<std::vector<double>> moments(table.size());
  for (size_t t = 0; t < table.size(); ++t) {
    if (table[t].kind == StatisticKind::kCount) counts[t].assign(n, 0);
    if (table[t].kind == StatisticKind::kMoment) moments[t].assign(n, kNaN);
  }
  std::vector<double> scale(n, kNaN);
  for (size_t s = 0; s < n; ++s) {
    const SiteRecord* site = measured_site(lane, static_cast<int64_t>(s));
    if (site == nullptr) continue;
    scale[s] = site->scale;
    for (size_t t = 0; t < table.size(); ++t) {
      if (table[t].kind == StatisticKind::kCount) {
        counts[t][s] = table[t].count(site->stats, site->error);
      } else {
        moments[t][s] = table[t].moment(site->stats, site->error);
      }
    }
  }
  scale_.write(step, scale.data());
  bits_hash_.write(step, bits_hash_row(lane, site_count_).data());
  for (size_t t = 0; t < table.size(); ++t) {
    const bool is_count = table[t].kind == StatisticKind::kCount;
    statistics_[t].write(step, is_count ? static_cast<const void*>(counts[t].data())
                                        : static_cast<const void*>(moments[t].data()));
  }
}

void LaneRecorder::write_updates(int64_t step, const LaneStep& lane) {
  const size_t n = static_cast<size_t>(site_count_);
  std::vector<uint64_t> stagnant(n, 0), count(n, 0);
  std::vector<double> update_sq(n, kNaN), weight_sq(n, kNaN);
  for (size_t s = 0; lane.alive && s < n && s < lane.updates.size(); ++s) {
    if (!lane.updates[s].measured) continue;
    const UpdateStats& stats = lane.updates[s].stats;
    stagnant[s] = stats.stagnant;
    count[s] = stats.count;
    update_sq[s] = stats.update_sq;
    weight_sq[s] = stats.weight_sq;
  }
  stagnant_.write(step, stagnant.data());
  update_count_.write(step, count.data());
  update_sq_.write(step, update_sq.data());
  weight_sq_.write(step, weight_sq.data());
}

// One row per sampled step. Sites that sum no products have samples 0.
void LaneRecorder::write_sums_sampled(int64_t step, const LaneStep& lane) {
  const int64_t row = step / extent_.sums_every;
  sums_step_.write(row, &step);
  const auto n = static_cast<size_t>(site_count_);
  const auto of_site = [&](size_t s) {
    return lane.alive && s < lane.sites.size() ? lane.sites[s].health : AccumulatorHealth{};
  };
  for (size_t c = 0; c < health_.size(); ++c) {
    const HealthColumn& column = health_columns()[c];
    std::vector<uint64_t> counts(column.count != nullptr ? n : 0);
    std::vector<double> moments(column.moment != nullptr ? n : 0);
    for (size_t s = 0; s < counts.size(); ++s) counts[s] = of_site(s).*column.count;
    for (size_t s = 0; s < moments.size(); ++s) moments[s] = of_site(s).*column.moment;
    health_[c].write(row, counts.empty() ? static_cast<const void*>(moments.data())
                                         : static_cast<const void*>(counts.data()));
  }
}

bool LaneRecorder::keeps_histogram(int64_t step, const LaneStep& lane) const {
  if (!lane.alive) return false;
  if (step < layout::kHistogramFirstSteps || step % extent_.histogram_every == 0) return true;
  for (const ScalerRecord& scaler : lane.scalers) {
    if (scaler.skipped) return true;
  }
  for (int64_t s = 0; s < site_count_; ++s) {
    const SiteRecord* site = measured_site(lane, s);
    if (site == nullptr) continue;
    if (site->stats.nonfinite_seen(extent_.stat_exempt[static_cast<size_t>(s)])) return true;
  }
  return false;
}

void LaneRecorder::write_histogram(int64_t step, const LaneStep& lane) {
  std::vector<uint32_t> bins(static_cast<size_t>(site_count_ * kHistogramBins), 0);
  for (int64_t s = 0; s < site_count_; ++s) {
    const SiteRecord* site = measured_site(lane, s);
    if (site == nullptr) continue;
    uint32_t* out = bins.data() + s * kHistogramBins;
    for (int b = 0; b < kHistogramBins; ++b) {
      out[b] = static_cast<uint32_t>(site->stats.exponent_histogram[static_cast<size_t>(b)]);
    }
  }
  histogram_.write(histogram_records_, bins.data());
  histogram_step_.write(histogram_records_, &step);
  ++histogram_records_;
}

void LaneRecorder::add_to_sums(const LaneStep& lane) {
  for (int64_t s = 0; s < site_count_; ++s) {
    const SiteRecord* site = measured_site(lane, s);
    if (site == nullptr) continue;
    uint64_t* out = sums_.data() + s * kHistogramBins;
    const uint64_t* bins = site->stats.exponent_histogram.data();
    for (int b = 0; b < kHistogramBins; ++b) out[b] += bins[b];
  }
}

void LaneRecorder::write_sums(int64_t steps_done) {
  const int64_t block = (steps_done - 1) / layout::kHistogramBlock;
  const int64_t covered = steps_done - block * layout::kHistogramBlock;
  histogram_50_.write(block, sums_.data());
  histogram_50_steps_.write(block, &covered);
}

void LaneRecorder::write_unfinished_sums(int64_t steps_done) {
  if (steps_done % layout::kHistogramBlock != 0) write_sums(steps_done);
}

void LaneRecorder::write_evaluation(int64_t row, int64_t steps_done, double loss, double accuracy,
                                    int64_t example_count) {
  eval_steps_done_.write(row, &steps_done);
  eval_loss_.write(row, &loss);
  eval_accuracy_.write(row, &accuracy);
  eval_count_.write(row, &example_count);
}

}  // namespace lockstep

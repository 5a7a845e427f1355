// Reads the records of a run file: steps, evaluations and loss scalers as they were written.
#include <algorithm>
#include <functional>
#include <limits>
#include <type_traits>

#include "src/graph/json.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/run_file_impl.h"

namespace lockstep {
namespace {

// The stored type of a member of type Value.
template <typename Value>
using StoredAs = std::conditional_t<std::is_same_v<Value, bool>, uint8_t, Value>;

bool is_of_step(const Quantity& quantity) {
  return quantity.rows() == Rows::kStep;
}
bool is_narrow(const Quantity& quantity) {
  return is_of_step(quantity) && !quantity.is_wide();
}

}  // namespace

bool RunFile::Impl::is_alive(int lane, int64_t step) const {
  const int64_t died_at = lanes[static_cast<size_t>(lane)].died_at;
  return died_at < 0 || step < died_at;
}

// A large graph takes half a second to parse: only for several losses.
std::vector<std::string> RunFile::Impl::loss_datasets(int lane) const {
  const std::string losses(group_of(quantity_of(&LaneStep::losses)));
  const std::string prefix = lane_path(lane, losses) + "/";
  std::vector<std::string> names;
  for (auto at = datasets.lower_bound(prefix); at != datasets.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    names.push_back(losses + "/" + at->first.substr(prefix.size()));
  }
  if (names.size() < 2) return names;
  const std::vector<std::string> order = loss_names(graph_from_json(graph_json));
  const auto place = [&](const std::string& name) {
    return std::ranges::find(order, name, [&](const std::string& loss) {
      return losses + "/" + hdf5::escape_link(loss);
    });
  };
  std::ranges::stable_sort(names, {}, place);
  return names;
}

std::vector<LaneColumn> RunFile::Impl::find_columns(int lane) const {
  std::vector<LaneColumn> found;
  const auto add = [&](const Quantity& quantity, const std::string& name, size_t loss) {
    const RunDataset& from = dataset(lane, name);
    found.push_back(
        {.column = {.quantity = &quantity, .width = element_count(from.row_shape), .loss = loss},
         .from = &from});
  };
  for (const Quantity& quantity : quantities()) {
    const bool is_sample = quantity.rows() == Rows::kSample;
    if (quantity.is_checksum() || (quantity.rows() != Rows::kStep && !is_sample)) continue;
    if (std::holds_alternative<Gathered>(quantity.source)) continue;
    if (quantity.axis == Axis::kLoss) {
      const std::vector<std::string> names = loss_datasets(lane);
      for (size_t i = 0; i < names.size(); ++i) add(quantity, names[i], i);
      continue;
    }
    // sums: files of version 2
    if (lacks(lane, quantity) || (is_sample && !has(lane, quantity.name))) continue;
    add(quantity, quantity.name, 0);
  }
  return found;
}

const std::vector<LaneColumn>& RunFile::Impl::columns_of(int lane) const {
  const auto found = columns.find(lane);
  return found != columns.end() ? found->second
                                : columns.emplace(lane, find_columns(lane)).first->second;
}

std::vector<StoredRow> RunFile::Impl::stored_rows(
    int lane, int64_t row, const std::function<bool(const Quantity&)>& wanted) const {
  std::vector<StoredRow> rows;
  for (const LaneColumn& column : columns_of(lane)) {
    if (!wanted(*column.column.quantity)) continue;
    rows.push_back({column.column, held_row(*column.from, row)});
  }
  return rows;
}

void RunFile::Impl::read_lane_rows(int lane, int64_t step,
                                   const std::function<bool(const Quantity&)>& wanted,
                                   LaneStep& into) const {
  take_lane_rows(stored_rows(lane, step, wanted), into);
  const auto last = static_cast<int64_t>(sites.sites.size()) - 1;
  for (const ScalerRecord& scaler : into.scalers) {
    if (scaler.culprit_site >= -1 && scaler.culprit_site <= last) continue;
    throw hdf5::Error(fmt::format("{}: culprit {}, must be -1 to {}", lane_path(lane, "loss_scale"),
                                  scaler.culprit_site, last));
  }
}

template <typename Record>
void RunFile::Impl::fill_members(int lane, int64_t row, std::vector<Record>& records) const {
  for (const Quantity& quantity : quantities()) {
    if_member<Record>(quantity, [&](const auto& member) {
      using Value = std::decay_t<decltype(std::invoke(member, records[0]))>;
      if (lacks(lane, quantity)) return;
      const auto values = rows_of<StoredAs<Value>>(lane, quantity.name, row, 1);
      if (values.size() != records.size()) {
        throw hdf5::Error(fmt::format("{} has {} numbers a row, {} required",
                                      lane_path(lane, quantity.name), values.size(),
                                      records.size()));
      }
      for (size_t i = 0; i < records.size(); ++i) {
        std::invoke(member, records[i]) = static_cast<Value>(values[i]);
      }
    });
  }
}

void RunFile::read_step(int lane, int64_t step, bool histograms, LaneStep& into) const {
  impl_->check_step(step);
  const LaneInfo& info = impl_->lanes.at(static_cast<size_t>(lane));
  const size_t sites = impl_->sites.sites.size();
  if (!impl_->is_alive(lane, step)) {
    if (!into.alive && into.sites.size() == sites) return;
    into = LaneStep();
    into.alive = false;
    into.died_of = info.died_of;
    into.sites.resize(sites);
    return;
  }
  into.alive = true;
  into.died_of = LaneStep().died_of;
  into.sites.resize(sites);
  impl_->guard([&] {
    const auto is_sample = [](const Quantity& q) { return q.rows() == Rows::kSample; };
    const auto is_wide = [](const Quantity& q) { return is_of_step(q) && q.is_wide(); };
    impl_->read_lane_rows(lane, step, is_narrow, into);
    take_site_rows(impl_->stored_rows(lane, step, is_wide), into);
    const std::vector<int64_t>& sampled = impl_->sampled_steps(lane);
    const auto sample = std::ranges::lower_bound(sampled, step);
    if (sample != sampled.end() && *sample == step) {
      take_sample_rows(impl_->stored_rows(lane, sample - sampled.begin(), is_sample), into);
    } else {
      for (SiteRecord& site : into.sites) site.health = {}, site.effect = {};
    }
    if (histograms) impl_->read_histograms(lane, step, into);
  });
}

LaneStep RunFile::step(int lane, int64_t step, bool histograms) const {
  LaneStep found;
  read_step(lane, step, histograms, found);
  return found;
}

void RunFile::Impl::read_histograms(int lane, int64_t step, LaneStep& into) const {
  const std::vector<int64_t> kept = complete_steps(lane, Gathered::kHistogramSteps);
  const auto found = std::ranges::lower_bound(kept, step);
  const bool is_kept = found != kept.end() && *found == step;
  std::vector<uint32_t> bins;
  if (is_kept) {
    bins =
        rows_of<uint32_t>(lane, quantity_of(Gathered::kHistograms).name, found - kept.begin(), 1);
  }
  for (size_t s = 0; s < into.sites.size(); ++s) {
    auto& histogram = into.sites[s].stats.exponent_histogram;
    histogram.fill(0);
    if (is_kept) std::ranges::copy_n(&bins[s * kHistogramBins], kHistogramBins, histogram.begin());
  }
}

std::vector<LaneStep> RunFile::course(int lane) const {
  return impl_->guard([&] {
    std::vector<LaneStep> steps(static_cast<size_t>(impl_->steps));
    for (int64_t step = 0; step < impl_->steps; ++step) {
      LaneStep& now = steps[static_cast<size_t>(step)];
      now.alive = impl_->is_alive(lane, step);
      if (now.alive) {
        impl_->read_lane_rows(lane, step, is_narrow, now);
      } else {
        now.died_of = impl_->lanes[static_cast<size_t>(lane)].died_of;
      }
    }
    return steps;
  });
}

std::vector<Evaluation> RunFile::evaluations(int lane) const {
  return impl_->guard([&] {
    std::vector<Evaluation> found;
    if (impl_->lacks(lane, quantity_of(&Evaluation::steps_done))) return found;
    const RunDataset& of_rows = impl_->dataset(lane, quantity_of(&Evaluation::steps_done).name);
    const int64_t rows =
        std::min(impl_->common_rows(lane, Rows::kEvaluation), impl_->complete_rows(lane, of_rows));
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<Evaluation> one(1);
      impl_->fill_members(lane, row, one);
      if (one[0].steps_done > impl_->steps) break;
      const int64_t before = found.empty() ? -1 : found.back().steps_done;
      if (one[0].steps_done <= before || one[0].example_count < 0) {
        throw hdf5::Error(fmt::format(
            "{}/eval: evaluation {} is after {} steps, the one before it "
            "after {}; it has {} examples",
            impl_->lane_path(lane, ""), row, one[0].steps_done, before, one[0].example_count));
      }
      found.push_back(one[0]);
    }
    return found;
  });
}

std::vector<ScalerRecord> RunFile::scalers(int lane, size_t column) const {
  const auto is_of_scaler = [](const Quantity& q) { return q.axis == Axis::kScaler; };
  return impl_->guard([&] {
    std::vector<ScalerRecord> records;
    LaneStep now;
    for (int64_t step = 0; step < impl_->steps; ++step) {
      if (!impl_->is_alive(lane, step)) {
        records.push_back({.scale = std::numeric_limits<double>::quiet_NaN()});
        continue;
      }
      impl_->read_lane_rows(lane, step, is_of_scaler, now);
      if (column >= now.scalers.size()) {
        throw InputError(fmt::format("run file '{}': scaler column {}: at most {} required",
                                     impl_->path, column, now.scalers.size() - 1));
      }
      records.push_back(now.scalers[column]);
    }
    return records;
  });
}

}  // namespace lockstep

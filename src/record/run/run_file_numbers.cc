// Reading the recorded quantities of a run file.
#include <algorithm>
#include <functional>
#include <type_traits>

#include "src/core/text.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/run_file_impl.h"

namespace lockstep {
namespace {

template <typename T, typename Stored>
std::vector<T> converted(const std::vector<Stored>& values) {
  return {values.begin(), values.end()};
}

// The stored type of a member of type Value.
template <typename Value>
using StoredAs = std::conditional_t<std::is_same_v<Value, bool>, uint8_t, Value>;

// Calls work(member) if the quantity is a member of Record.
template <typename Record, typename Work>
void if_member(const Quantity& quantity, Work work) {
  std::visit(
      [&](const auto& source) {
        if constexpr (std::is_invocable_v<decltype(source), Record&>) work(source);
      },
      quantity.source);
}

// "counts" of "counts/to_zero".
std::string_view group_of(const Quantity& quantity) {
  return std::string_view(quantity.name).substr(0, quantity.name.find('/'));
}

}  // namespace

void RunFile::Impl::check_step(int64_t step) const {
  if (step >= 0 && step < steps) return;
  throw InputError(fmt::format("run file '{}': step {} requested, steps 0 to {} are recorded", path,
                               step, steps - 1));
}

std::string RunFile::Impl::lane_path(int lane, std::string_view name) const {
  return fmt::format("lanes/{}/{}", hdf5::escape_link(lanes.at(static_cast<size_t>(lane)).name),
                     name);
}

bool RunFile::Impl::has(int lane, std::string_view name) const {
  return H5Lexists(root.id(), lane_path(lane, name).c_str(), H5P_DEFAULT) > 0;
}

const GrowingDataset& RunFile::Impl::dataset(int lane, std::string_view name) const {
  const std::string where = lane_path(lane, name);
  auto found = datasets.find(where);
  if (found == datasets.end()) {
    found = datasets.emplace(where, GrowingDataset::open(root.id(), where)).first;
  }
  return found->second;
}

template <typename T>
std::vector<T> RunFile::Impl::rows_of(int lane, std::string_view name, int64_t begin,
                                      int64_t count) const {
  const GrowingDataset& from = dataset(lane, name);
  std::vector<T> values(static_cast<size_t>(count * element_count(from.row_shape())));
  from.read_rows(begin, count, values.data());
  return values;
}

template <typename T>
std::vector<T> RunFile::Impl::site_row(int lane, std::string_view name, int64_t row,
                                       size_t per_site) const {
  auto values = rows_of<T>(lane, name, row, 1);
  if (values.size() == sites.sites.size() * per_site) return values;
  throw hdf5::Error(
      fmt::format("dataset {} has {} numbers a row, must have {} for each of {} sites",
                  lane_path(lane, name), values.size(), per_site, sites.sites.size()));
}

void RunFile::Impl::require_statistic(int lane, std::string_view group,
                                      std::string_view name) const {
  const hdf5::Handle parent = hdf5::open_group(root.id(), lane_path(lane, group));
  const std::vector<std::string> names = hdf5::link_names(parent.id());
  if (std::ranges::find(names, name) != names.end()) return;
  throw InputError(fmt::format("run file '{}': no statistic '{}' among its {}", path, name, group),
                   did_you_mean(name, names));
}

template <typename T>
std::vector<T> RunFile::Impl::statistic(int lane, const char* group, std::string_view name,
                                        int64_t step) const {
  check_step(step);
  return guard([&] {
    require_statistic(lane, group, name);
    return site_row<T>(lane, fmt::format("{}/{}", group, name), step);
  });
}

Numbers RunFile::Impl::numbers(int lane, const Quantity& quantity, int64_t begin,
                               int64_t count) const {
  const auto read = [&]<typename T>(T) {
    if (!quantity.is_wide()) return rows_of<T>(lane, quantity.name, begin, count);
    return site_row<T>(lane, quantity.name, begin,
                       quantity.axis == Axis::kSite ? 1 : kHistogramBins);
  };
  switch (quantity.storage()) {
    case Storage::kF64:
      return {{}, read(double{})};
    case Storage::kU64:
      return {read(uint64_t{}), {}};
    case Storage::kU32:
      return {converted<uint64_t>(read(uint32_t{})), {}};
    case Storage::kI64:
      return {{}, converted<double>(read(int64_t{}))};
    case Storage::kI32:
      return {{}, converted<double>(read(int32_t{}))};
    case Storage::kU8:
      return {{}, converted<double>(read(uint8_t{}))};
  }
  return {};
}

template <typename T>
std::vector<T> RunFile::Impl::series(int lane, const Source& source) const {
  const Quantity& quantity = quantity_of(source);
  return guard([&] {
    if (quantity.optional && !has(lane, quantity.name)) return std::vector<T>{};
    return rows_of<T>(lane, quantity.name, 0, steps);
  });
}

template <typename Record>
void RunFile::Impl::fill_members(int lane, int64_t row, std::vector<Record>& records) const {
  for (const Quantity& quantity : quantities()) {
    if_member<Record>(quantity, [&](const auto& member) {
      using Value = std::decay_t<decltype(std::invoke(member, records[0]))>;
      if (quantity.optional && !has(lane, quantity.name)) return;
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

int64_t RunFile::Impl::common_rows(int lane, Rows rows) const {
  int64_t common = std::numeric_limits<int64_t>::max();
  for (const Quantity& quantity : quantities()) {
    if (quantity.rows() != rows || (quantity.optional && !has(lane, quantity.name))) continue;
    common = std::min(common, dataset(lane, quantity.name).rows());
  }
  return common;
}

std::vector<int64_t> RunFile::Impl::complete_steps(int lane, Gathered gathered) const {
  const Quantity& quantity = quantity_of(gathered);
  auto found = rows_of<int64_t>(lane, quantity.name, 0, common_rows(lane, quantity.rows()));
  while (!found.empty() && found.back() >= steps) found.pop_back();
  return found;
}

// Steps that each row of 50-step sums covers; 0 if the row is not complete.
std::vector<int64_t> RunFile::Impl::covered_blocks(int lane) const {
  auto covered = rows_of<int64_t>(lane, quantity_of(Gathered::kBlockSteps).name, 0,
                                  common_rows(lane, Rows::kBlock));
  for (size_t i = 0; i < covered.size(); ++i) {
    if (static_cast<int64_t>(i) * kHistogramBlock + covered[i] > steps) covered[i] = 0;
  }
  return covered;
}

std::vector<double> RunFile::loss(int lane) const {
  return impl_->series<double>(lane, &LaneStep::loss);
}
std::vector<double> RunFile::gradient_norm(int lane) const {
  return impl_->series<double>(lane, &LaneStep::gradient_norm);
}
std::vector<double> RunFile::gradient_norms(int lane) const {
  return impl_->series<double>(lane, &LaneStep::gradient_norms);
}
std::vector<double> RunFile::lr(int lane) const {
  return impl_->series<double>(lane, &LaneStep::lr);
}
std::vector<double> RunFile::seconds(int lane) const {
  return impl_->series<double>(lane, &LaneStep::seconds);
}
std::vector<int32_t> RunFile::attempts(int lane) const {
  return impl_->series<int32_t>(lane, &LaneStep::attempts);
}

std::vector<double> RunFile::named_loss(int lane, std::string_view name) const {
  const std::string group(group_of(quantity_of(&LaneStep::losses)));
  const std::string path = group + "/" + hdf5::escape_link(name);
  return impl_->guard([&] {
    if (!impl_->has(lane, path)) return std::vector<double>{};
    return impl_->rows_of<double>(lane, path, 0, impl_->steps);
  });
}

std::vector<Evaluation> RunFile::evaluations(int lane) const {
  return impl_->guard([&] {
    std::vector<Evaluation> found;
    const int64_t rows = impl_->common_rows(lane, Rows::kEvaluation);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<Evaluation> one(1);
      impl_->fill_members(lane, row, one);
      if (one[0].steps_done > impl_->steps) break;
      found.push_back(one[0]);
    }
    return found;
  });
}

size_t RunFile::scaler_columns(int lane) const {
  return impl_->guard([&] {
    const std::string& name = quantity_of(&ScalerRecord::scale).name;
    return static_cast<size_t>(impl_->dataset(lane, name).row_shape().at(0));
  });
}

std::vector<ScalerRecord> RunFile::scalers(int lane, size_t column) const {
  const size_t width = scaler_columns(lane);
  if (column >= width) {
    throw InputError(fmt::format("run file '{}': scaler column {}: at most {} required",
                                 impl_->path, column, width - 1));
  }
  return impl_->guard([&] {
    std::vector<ScalerRecord> records(static_cast<size_t>(impl_->steps));
    for (const Quantity& quantity : quantities()) {
      if_member<ScalerRecord>(quantity, [&](const auto& member) {
        using Value = std::decay_t<decltype(std::invoke(member, records[0]))>;
        const auto values = impl_->rows_of<StoredAs<Value>>(lane, quantity.name, 0, impl_->steps);
        for (size_t step = 0; step < records.size(); ++step) {
          std::invoke(member, records[step]) = static_cast<Value>(values.at(step * width + column));
        }
      });
    }
    return records;
  });
}

std::vector<double> RunFile::scale(int lane, int64_t step) const {
  return numbers_at(lane, quantity_of(&SiteRecord::scale), step).reals;
}
std::vector<uint64_t> RunFile::bits_hash(int lane, int64_t step) const {
  return numbers_at(lane, quantity_of(&TensorStats::bits_hash), step).integers;
}
std::vector<uint64_t> RunFile::count(int lane, std::string_view statistic, int64_t step) const {
  return impl_->statistic<uint64_t>(lane, "counts", statistic, step);
}
std::vector<double> RunFile::moment(int lane, std::string_view statistic, int64_t step) const {
  return impl_->statistic<double>(lane, "moments", statistic, step);
}

std::vector<int64_t> RunFile::histogram_steps(int lane) const {
  return impl_->guard([&] { return impl_->complete_steps(lane, Gathered::kHistogramSteps); });
}
std::vector<uint32_t> RunFile::histogram(int lane, int64_t record) const {
  return impl_->guard([&] {
    return impl_->site_row<uint32_t>(lane, quantity_of(Gathered::kHistograms).name, record,
                                     kHistogramBins);
  });
}

std::vector<int64_t> RunFile::sums_steps(int lane) const {
  return impl_->guard([&]() -> std::vector<int64_t> {
    if (impl_->version < 3) return {};  // not measured
    return impl_->complete_steps(lane, Gathered::kSampleSteps);
  });
}
std::vector<AccumulatorHealth> RunFile::sums_at(int lane, size_t sample) const {
  return impl_->guard([&] {
    std::vector<AccumulatorHealth> here(impl_->sites.sites.size());
    impl_->fill_members(lane, static_cast<int64_t>(sample), here);
    return here;
  });
}
std::vector<AccumulatorHealth> RunFile::sums(int lane) const {
  std::vector<AccumulatorHealth> total(impl_->sites.sites.size());
  const size_t samples = sums_steps(lane).size();
  for (size_t sample = 0; sample < samples; ++sample) {
    const std::vector<AccumulatorHealth> here = sums_at(lane, sample);
    for (size_t s = 0; s < total.size(); ++s) total[s].merge(here[s]);
  }
  return total;
}

std::vector<std::vector<LossEffect>> RunFile::loss_effects(int lane) const {
  const size_t samples = sums_steps(lane).size();
  return impl_->guard([&] {
    std::vector<std::vector<LossEffect>> found;
    if (!impl_->has(lane, quantity_of(&LossEffect::rounding).name)) return found;
    found.assign(samples, std::vector<LossEffect>(impl_->sites.sites.size()));
    for (size_t row = 0; row < samples; ++row) {
      impl_->fill_members(lane, static_cast<int64_t>(row), found[row]);
    }
    return found;
  });
}

std::vector<uint64_t> RunFile::total_histogram(int lane) const {
  return impl_->guard([&] {
    const std::vector<int64_t> covered = impl_->covered_blocks(lane);
    std::vector<uint64_t> total(impl_->sites.sites.size() * kHistogramBins, 0);
    for (size_t i = 0; i < covered.size(); ++i) {
      if (covered[i] == 0) continue;
      const auto sums = impl_->site_row<uint64_t>(lane, quantity_of(Gathered::kBlockSums).name,
                                                  static_cast<int64_t>(i), kHistogramBins);
      for (size_t j = 0; j < total.size(); ++j) total[j] += sums[j];
    }
    return total;
  });
}
int64_t RunFile::total_histogram_steps(int lane) const {
  int64_t steps = 0;
  for (const int64_t n : impl_->guard([&] { return impl_->covered_blocks(lane); })) steps += n;
  return steps;
}

std::vector<UpdateRecord> RunFile::updates(int lane, int64_t step) const {
  impl_->check_step(step);
  std::vector<UpdateStats> stats(impl_->sites.sites.size());
  impl_->guard([&] { impl_->fill_members(lane, step, stats); });
  std::vector<UpdateRecord> records(stats.size());
  for (size_t i = 0; i < records.size(); ++i) {
    // update_sq of a measured site may be NaN: only count 0 and NaN together mean none.
    records[i].measured = stats[i].count > 0 || stats[i].update_sq == stats[i].update_sq;
    records[i].stats = stats[i];
  }
  return records;
}

std::vector<DecisionStats> RunFile::decisions_at(int lane, int64_t step) const {
  impl_->check_step(step);
  return impl_->guard([&] {
    std::vector<DecisionStats> here;
    if (!impl_->has(lane, quantity_of(&DecisionStats::flipped).name)) return here;
    here.resize(impl_->sites.sites.size());
    impl_->fill_members(lane, step, here);
    return here;
  });
}
std::vector<DecisionStats> RunFile::decisions(int lane) const {
  std::vector<DecisionStats> total;
  for (int64_t step = 0; step < impl_->steps; ++step) {
    const std::vector<DecisionStats> here = decisions_at(lane, step);
    total.resize(here.size());
    for (size_t s = 0; s < total.size(); ++s) total[s].merge(here[s]);
  }
  return total;
}

Numbers RunFile::numbers_at(int lane, const Quantity& quantity, int64_t step) const {
  impl_->check_step(step);
  return impl_->guard([&]() -> Numbers {
    if (quantity.optional && !impl_->has(lane, quantity.name)) return {};
    if (std::holds_alternative<const Statistic*>(quantity.source)) {
      const std::string_view group = group_of(quantity);
      impl_->require_statistic(lane, group, quantity.name.substr(group.size() + 1));
    }
    if (quantity.rows() == Rows::kStep) return impl_->numbers(lane, quantity, step, 1);
    const std::vector<int64_t> steps = impl_->complete_steps(lane, Gathered::kHistogramSteps);
    const auto found = std::ranges::lower_bound(steps, step);
    if (found == steps.end() || *found != step) return {};
    return impl_->numbers(lane, quantity, found - steps.begin(), 1);
  });
}

// Counts of steps and sums of whole runs are integers here, as from `sums` and `total_histogram`.
Numbers RunFile::numbers(int lane, const Quantity& quantity) const {
  const auto whole = [](const std::vector<int64_t>& steps) {
    return Numbers{{steps.begin(), steps.end()}, {}};
  };
  if (const auto* gathered = std::get_if<Gathered>(&quantity.source)) {
    switch (*gathered) {
      case Gathered::kSampleSteps:
        return whole(sums_steps(lane));
      case Gathered::kHistogramSteps:
        return whole(histogram_steps(lane));
      case Gathered::kBlockSums:
        return {total_histogram(lane), {}};
      case Gathered::kBlockSteps:
        return whole({total_histogram_steps(lane)});
      case Gathered::kHistograms:
        return {};  // by step: numbers_at
    }
  }
  Numbers found;
  const auto take = [&](const auto& records, const auto& member) {
    for (const auto& record : records) {
      const auto value = std::invoke(member, record);
      if constexpr (std::is_same_v<decltype(value), const uint64_t>) {
        found.integers.push_back(value);
      } else {
        found.reals.push_back(static_cast<double>(value));
      }
    }
  };
  if (quantity.rows() == Rows::kSample) {
    const std::vector<AccumulatorHealth> totals = sums(lane);
    if_member<AccumulatorHealth>(quantity, [&](const auto& member) { take(totals, member); });
    for (const std::vector<LossEffect>& sample : loss_effects(lane)) {
      if_member<LossEffect>(quantity, [&](const auto& member) { take(sample, member); });
    }
    return found;
  }
  if (quantity.rows() == Rows::kEvaluation) {
    const std::vector<Evaluation> all = evaluations(lane);
    if_member<Evaluation>(quantity, [&](const auto& member) { take(all, member); });
    return found;
  }
  return impl_->guard([&]() -> Numbers {
    if (quantity.optional && !impl_->has(lane, quantity.name)) return {};
    return impl_->numbers(lane, quantity, 0, impl_->steps);
  });
}

}  // namespace lockstep

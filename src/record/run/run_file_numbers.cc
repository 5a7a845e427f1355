// Reading the recorded quantities of a run file.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>

#include "src/core/text.h"
#include "src/graph/json.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/run_checksum.h"
#include "src/record/run/run_file_impl.h"
#include "src/record/run/run_lock.h"

namespace lockstep {
namespace {

constexpr size_t kMostProblemBytes = 1000;

template <typename T, typename Stored>
std::vector<T> converted(const std::vector<Stored>& values) {
  return {values.begin(), values.end()};
}

template <typename T>
constexpr StoredValue::Kind value_kind() {
  using Kind = StoredValue::Kind;
  if (std::is_same_v<T, double>) return Kind::kF64;
  if (std::is_same_v<T, uint64_t>) return Kind::kU64;
  if (std::is_same_v<T, int64_t>) return Kind::kI64;
  if (std::is_same_v<T, uint32_t>) return Kind::kU32;
  return std::is_same_v<T, int32_t> ? Kind::kI32 : Kind::kU8;
}

// The stored type of a member of type Value.
template <typename Value>
using StoredAs = std::conditional_t<std::is_same_v<Value, bool>, uint8_t, Value>;

// "counts" of "counts/to_zero".
std::string_view group_of(const Quantity& quantity) {
  return std::string_view(quantity.name).substr(0, quantity.name.find('/'));
}

bool is_of_step(const Quantity& quantity) {
  return quantity.rows() == Rows::kStep;
}
bool is_narrow(const Quantity& quantity) {
  return is_of_step(quantity) && !quantity.is_wide();
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
  return datasets.contains(lane_path(lane, name));
}

const RunDataset& RunFile::Impl::dataset(int lane, std::string_view name) const {
  const std::string where = lane_path(lane, name);
  const auto found = datasets.find(where);
  if (found == datasets.end()) throw hdf5::Error("dataset " + where + ": is missing");
  return found->second;
}

// A failure is not damage if a writer moved what was to be read: the file is then opened again.
void RunFile::Impl::read_rows(const std::string& where, const RunDataset& from, int64_t begin,
                              int64_t count, void* out) const {
  const std::string place = group + "/" + where;
  const bool was_written = is_being_written(path);
  try {
    return file->read_rows(place, begin, count, from.row_bytes, out);
  } catch (const std::runtime_error&) {
    if (!was_written && !is_being_written(path)) throw;
  }
  RunFile again(path, /*allow_empty=*/true, group.empty() ? seeds.front() : options.seed);
  if (!again.impl_->identity.fits(identity)) {
    throw InputError(fmt::format("run file '{}': was replaced by another run", path));
  }
  file = std::move(again.impl_->file);
  file->read_rows(place, begin, count, from.row_bytes, out);
}

void RunFile::Impl::require_rows(const std::string& where, const RunDataset& from, int64_t begin,
                                 int64_t count) const {
  if (begin >= 0 && count >= 0 && begin <= from.rows && count <= from.rows - begin) return;
  throw hdf5::Error(
      fmt::format("{}: rows {} to {} of {} requested", where, begin, begin + count - 1, from.rows));
}

const char* RunFile::Impl::held_row(const std::string& where, const RunDataset& from,
                                    int64_t row) const {
  require_rows(where, from, row, 1);
  if (row < from.held_begin || row >= from.held_begin + from.held_rows) {
    constexpr size_t kHeldBytes = 1 << 18;
    const auto together = static_cast<int64_t>(kHeldBytes / std::max<size_t>(from.row_bytes, 1));
    // Not beyond the complete steps: later rows may not be written.
    const int64_t end = std::max(row + 1, std::min(from.rows, steps));
    from.held_rows = 0;
    from.held_begin = row;
    const int64_t count = std::clamp<int64_t>(together, 1, end - row);
    from.held.resize(static_cast<size_t>(count) * from.row_bytes);
    read_rows(where, from, row, count, from.held.data());
    from.held_rows = count;
  }
  return from.held.data() + static_cast<size_t>(row - from.held_begin) * from.row_bytes;
}

template <typename T>
std::vector<T> RunFile::Impl::rows_of(int lane, std::string_view name, int64_t begin,
                                      int64_t count) const {
  const std::string where = lane_path(lane, name);
  const RunDataset& from = dataset(lane, name);
  if (from.kind != value_kind<T>()) throw hdf5::Error(where + ": has another type");
  require_rows(where, from, begin, count);
  std::vector<T> values(static_cast<size_t>(count * element_count(from.row_shape)));
  if (values.empty()) return values;
  if (count > 1) {
    read_rows(where, from, begin, count, values.data());
  } else {
    std::memcpy(values.data(), held_row(where, from, begin), from.row_bytes);
  }
  return values;
}

Numbers RunFile::Impl::numbers(int lane, const Quantity& quantity, int64_t begin,
                               int64_t count) const {
  const auto read = [&]<typename T>(T) { return rows_of<T>(lane, quantity.name, begin, count); };
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
    common = std::min(common, dataset(lane, quantity.name).rows);
  }
  return common;
}

std::vector<int64_t> RunFile::Impl::complete_steps(int lane, Gathered gathered) const {
  const Quantity& quantity = quantity_of(gathered);
  auto found = rows_of<int64_t>(lane, quantity.name, 0, common_rows(lane, quantity.rows()));
  while (!found.empty() && found.back() >= steps) found.pop_back();
  if (!std::ranges::is_sorted(found) || (!found.empty() && found.front() < 0)) {
    throw hdf5::Error(lane_path(lane, quantity.name) + ": the steps are not in order");
  }
  return found;
}

// Steps that each row of 50-step sums covers; 0 if the row is not complete.
std::vector<int64_t> RunFile::Impl::covered_blocks(int lane) const {
  auto covered = rows_of<int64_t>(lane, quantity_of(Gathered::kBlockSteps).name, 0,
                                  common_rows(lane, Rows::kBlock));
  for (size_t i = 0; i < covered.size(); ++i) {
    if (covered[i] < 0 || covered[i] > kHistogramBlock) {
      throw hdf5::Error(fmt::format("{}: block {} covers {} steps, at most {} allowed",
                                    lane_path(lane, quantity_of(Gathered::kBlockSteps).name), i,
                                    covered[i], kHistogramBlock));
    }
    if (static_cast<int64_t>(i) * kHistogramBlock + covered[i] > steps) covered[i] = 0;
  }
  return covered;
}

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
         .where = lane_path(lane, name),
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
    const bool may_lack = quantity.optional || is_sample;  // sums: files of version 2
    if (may_lack && !has(lane, quantity.name)) continue;
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
    rows.push_back({column.column, held_row(column.where, *column.from, row)});
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

std::vector<double> RunFile::loss(int lane) const {
  return impl_->guard([&] {
    return impl_->rows_of<double>(lane, quantity_of(&LaneStep::loss).name, 0, impl_->steps);
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

std::vector<int64_t> RunFile::histogram_steps(int lane) const {
  return impl_->guard([&] { return impl_->complete_steps(lane, Gathered::kHistogramSteps); });
}
const std::vector<int64_t>& RunFile::Impl::sampled_steps(int lane) const {
  const auto found = sampled.find(lane);
  if (found != sampled.end()) return found->second;
  // Version 2 did not measure sums.
  return sampled
      .emplace(lane,
               version < 3 ? std::vector<int64_t>{} : complete_steps(lane, Gathered::kSampleSteps))
      .first->second;
}
std::vector<int64_t> RunFile::sums_steps(int lane) const {
  return impl_->guard([&] { return impl_->sampled_steps(lane); });
}

std::vector<uint64_t> RunFile::total_histogram(int lane) const {
  return impl_->guard([&] {
    const std::vector<int64_t> covered = impl_->covered_blocks(lane);
    std::vector<uint64_t> total(impl_->sites.sites.size() * kHistogramBins, 0);
    for (size_t i = 0; i < covered.size(); ++i) {
      if (covered[i] == 0) continue;
      const auto sums = impl_->rows_of<uint64_t>(lane, quantity_of(Gathered::kBlockSums).name,
                                                 static_cast<int64_t>(i), 1);
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

Numbers RunFile::numbers_at(int lane, const Quantity& quantity, int64_t step) const {
  impl_->check_step(step);
  return impl_->guard([&]() -> Numbers {
    if (quantity.optional && !impl_->has(lane, quantity.name)) return {};
    if (quantity.rows() == Rows::kStep) return impl_->numbers(lane, quantity, step, 1);
    const std::vector<int64_t> steps = impl_->complete_steps(lane, Gathered::kHistogramSteps);
    const auto found = std::ranges::lower_bound(steps, step);
    if (found == steps.end() || *found != step) return {};
    return impl_->numbers(lane, quantity, found - steps.begin(), 1);
  });
}

// Counts of steps and sums of whole runs are integers here.
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
        throw std::logic_error("numbers: histograms are read by step");
      default:
        break;  // checksums, as any other quantity
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
    std::vector<AccumulatorHealth> totals(impl_->sites.sites.size());
    std::vector<LossEffect> effects;
    LaneStep sample;
    for (const int64_t step : sums_steps(lane)) {
      read_step(lane, step, /*histograms=*/false, sample);
      for (size_t s = 0; s < totals.size(); ++s) {
        totals[s].merge(sample.sites[s].health);
        effects.push_back(sample.sites[s].effect);
      }
    }
    if_member<AccumulatorHealth>(quantity, [&](const auto& member) { take(totals, member); });
    if_member<LossEffect>(quantity, [&](const auto& member) { take(effects, member); });
    return found;
  }
  if (quantity.rows() == Rows::kEvaluation) {
    const std::vector<Evaluation> all = evaluations(lane);
    if_member<Evaluation>(quantity, [&](const auto& member) { take(all, member); });
    return found;
  }
  if (quantity.rows() == Rows::kProduct) {
    const std::vector<DeviceProduct> all = device(lane).kinds;
    if_member<DeviceProduct>(quantity, [&](const auto& member) { take(all, member); });
    return found;
  }
  return impl_->guard([&]() -> Numbers {
    if (quantity.optional && !impl_->has(lane, quantity.name)) return {};
    return impl_->numbers(lane, quantity, 0, impl_->steps);
  });
}

// The rows with a checksum of this kind that the complete steps have.
std::vector<int64_t> RunFile::Impl::sealed_rows(int lane, Gathered checksums) const {
  std::vector<int64_t> rows;
  const auto first = [&](size_t count) {
    rows.resize(count);
    std::iota(rows.begin(), rows.end(), 0);
  };
  switch (checksums) {
    case Gathered::kSampleChecksums:
      first(complete_steps(lane, Gathered::kSampleSteps).size());
      break;
    case Gathered::kHistogramChecksums:
      first(complete_steps(lane, Gathered::kHistogramSteps).size());
      break;
    case Gathered::kProductChecksums: {
      const auto found = rows_of<int64_t>(lane, quantity_of(&DeviceProduct::step).name, 0,
                                          common_rows(lane, Rows::kProduct));
      const auto is_late = [&](int64_t step) { return step >= steps; };
      first(static_cast<size_t>(std::ranges::find_if(found, is_late) - found.begin()));
      break;
    }
    case Gathered::kBlockChecksums: {
      const std::vector<int64_t> covered = covered_blocks(lane);
      // The last, short row is there only if the run ended or was stopped in good order.
      for (int64_t i = 0; i < steps / kHistogramBlock; ++i) {
        if (i < std::ssize(covered) && covered[static_cast<size_t>(i)] == kHistogramBlock) continue;
        throw hdf5::Error(fmt::format("block {} of the exponent histograms has not {} steps", i,
                                      kHistogramBlock));
      }
      for (size_t i = 0; i < covered.size(); ++i) {
        if (covered[i] > 0) rows.push_back(static_cast<int64_t>(i));
      }
      break;
    }
    default:
      first(static_cast<size_t>(steps));
  }
  return rows;
}

RunFile::Proof RunFile::prove() const {
  Proof proof;
  for (int lane = 0; lane < static_cast<int>(impl_->lanes.size()); ++lane) {
    const std::string name = impl_->lanes[static_cast<size_t>(lane)].name;
    for (const Quantity& checksums : quantities()) {
      if (!checksums.is_checksum()) continue;
      const bool has_device = !impl_->lanes[static_cast<size_t>(lane)].device_sums.empty();
      if (checksums.is_of_device() && !has_device) continue;
      if (!impl_->has(lane, checksums.name)) {
        ++proof.unsealed;
        continue;
      }
      try {
        impl_->prove(lane, checksums, evaluations(lane).size(), proof);
      } catch (const InputError& error) {
        proof.problems.push_back(fmt::format("lane {}: {}", name, error.what()));
      } catch (const std::runtime_error& error) {
        proof.problems.push_back(
            fmt::format("lane {}: {}", name, printable(error.what(), kMostProblemBytes)));
      }
    }
  }
  return proof;
}

// Adds the first damaged row of this kind.
void RunFile::Impl::prove(int lane, const Quantity& checksums, size_t evaluations,
                          Proof& proof) const {
  const auto kind = std::get<Gathered>(checksums.source);
  const std::string prefix = lane_path(lane, "");
  std::vector<std::pair<std::string, const RunDataset*>> parts;  // by name below the lane's group
  for (const Quantity& quantity : quantities()) {
    if (checksums_of(quantity) != kind) continue;
    const bool is_several = quantity.axis == Axis::kLoss;
    const std::string where =
        is_several ? prefix + std::string(group_of(quantity)) + "/" : prefix + quantity.name;
    for (auto at = datasets.lower_bound(where); at != datasets.end(); ++at) {
      if (is_several ? !at->first.starts_with(where) : at->first != where) break;
      parts.emplace_back(at->first.substr(prefix.size()), &at->second);
    }
  }
  std::vector<int64_t> rows = sealed_rows(lane, kind);
  if (kind == Gathered::kEvaluationChecksums) rows.resize(evaluations);
  const LaneInfo& info = lanes[static_cast<size_t>(lane)];
  for (const int64_t row : rows) {
    uint64_t sum = 0;
    if (kind == Gathered::kStepChecksums) {
      const bool has_died = info.died_at >= 0 && row >= info.died_at;
      sum = death_checksum(row, has_died, info.died_of);
    }
    for (const auto& [name, part] : parts) {
      sum ^= row_checksum(name, row, held_row(prefix + name, *part, row), part->row_bytes);
    }
    ++proof.rows;
    if (sum == rows_of<uint64_t>(lane, checksums.name, row, 1)[0]) continue;
    proof.problems.push_back(fmt::format("lane {}: {} {}: the checksum does not fit the numbers",
                                         info.name, axes_text(checksums), row));
    return;
  }
}

// For run_file_device.cc.
template std::vector<int64_t> RunFile::Impl::rows_of(int, std::string_view, int64_t, int64_t) const;

}  // namespace lockstep

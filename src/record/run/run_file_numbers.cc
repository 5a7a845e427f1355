// Reads the rows of a run file's datasets: quantities by name, and the checksums that prove them.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>

#include "src/core/text.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/run_checksum.h"
#include "src/record/run/run_file_impl.h"
#include "src/record/run/run_file_names.h"
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

// Where the rows of a kind say their step; of blocks, how many steps they cover.
Source steps_of(Rows kind) {
  return kind == Rows::kEvaluation  ? Source(&Evaluation::steps_done)
         : kind == Rows::kProduct   ? Source(&DeviceProduct::step)
         : kind == Rows::kHistogram ? Source(Gathered::kHistogramSteps)
         : kind == Rows::kBlock     ? Source(Gathered::kBlockSteps)
                                    : Source(Gathered::kSampleSteps);
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

bool RunFile::Impl::lacks(int lane, const Quantity& quantity) const {
  return !quantity.is_required(lanes[static_cast<size_t>(lane)]) && !has(lane, quantity.name);
}

const RunDataset& RunFile::Impl::dataset(int lane, std::string_view name) const {
  const std::string where = lane_path(lane, name);
  const auto found = datasets.find(where);
  if (found == datasets.end()) throw hdf5::Error("dataset " + where + ": is missing");
  return found->second;
}

// A failure is not damage if a writer moved what was to be read: the file is then opened again.
void RunFile::Impl::read_rows(const RunDataset& from, int64_t begin, int64_t count,
                              void* out) const {
  const std::string place = group + "/" + from.where;
  const bool was_written = is_being_written(path);
  try {
    return file->read_rows(place, begin, count, from.row_bytes, out);
  } catch (const std::runtime_error&) {
    if (!was_written && !is_being_written(path)) throw;
  }
  RunFile again =
      RunFile::of_any_run(path, /*allow_empty=*/true, group.empty() ? seeds.front() : options.seed);
  if (!again.impl_->identity.fits(identity)) {
    throw InputError(fmt::format("run file '{}': was replaced by another run", path));
  }
  file = std::move(again.impl_->file);
  file->read_rows(place, begin, count, from.row_bytes, out);
}

void RunFile::Impl::require_rows(const RunDataset& from, int64_t begin, int64_t count) const {
  if (begin >= 0 && count >= 0 && begin <= from.rows && count <= from.rows - begin) return;
  throw hdf5::Error(fmt::format("{}: rows {} to {} of {} requested", from.where, begin,
                                begin + count - 1, from.rows));
}

void RunFile::Impl::require_whole(const RunDataset& from, int64_t row, const char* bytes) const {
  if (from.checksums == nullptr) return;
  const char* sums = held_row(*from.checksums, row);
  uint64_t sum = 0;
  std::memcpy(&sum, sums + from.part * sizeof sum, sizeof sum);
  if (sum == row_checksum(from.name, row, bytes, from.row_bytes)) return;
  throw RowDamage(fmt::format("{}: {} {}: the checksum does not fit", from.where,
                              to_string(from.quantity->rows()), row));
}

void RunFile::Impl::require_alive(const LaneInfo& lane, const RunDataset& checksums,
                                  int64_t step) const {
  const bool has_died = lane.died_at >= 0 && step >= lane.died_at;
  const uint64_t sum = death_checksum(step, has_died, lane.died_of);
  if (std::memcmp(held_row(checksums, step), &sum, sizeof sum) == 0) return;
  throw RowDamage(fmt::format("{}: step {}: the checksum of the lane's {} does not fit",
                              checksums.where, step, run_names::kDiedAt));
}

// Deaths are for good: the steps around one, or the last step, say it of all.
void RunFile::Impl::check_deaths() const {
  for (int lane = 0; lane < static_cast<int>(lanes.size()) && steps > 0; ++lane) {
    const LaneInfo& info = lanes[static_cast<size_t>(lane)];
    const auto sums = datasets.find(lane_path(lane, quantity_of(Gathered::kStepChecksums).name));
    if (sums == datasets.end()) continue;
    const int64_t first = info.died_at >= 0 ? info.died_at : steps - 1;
    require_alive(info, sums->second, first);
    if (first > 0) require_alive(info, sums->second, first - 1);
  }
}

const char* RunFile::Impl::held_row(const RunDataset& from, int64_t row) const {
  require_rows(from, row, 1);
  if (row < from.held_begin || row >= from.held_begin + from.held_rows) {
    constexpr size_t kHeldBytes = 1 << 18;
    const auto together = static_cast<int64_t>(kHeldBytes / std::max<size_t>(from.row_bytes, 1));
    // Not beyond the complete steps: later rows may not be written.
    const int64_t end = std::max(row + 1, std::min(from.rows, steps));
    from.held_rows = 0;
    from.held_begin = row;
    const int64_t count = std::clamp<int64_t>(together, 1, end - row);
    from.held.resize(static_cast<size_t>(count) * from.row_bytes);
    read_rows(from, row, count, from.held.data());
    from.held_rows = count;
    from.held_proven.assign(static_cast<size_t>(count), from.checksums == nullptr);
  }
  const auto at = static_cast<size_t>(row - from.held_begin);
  const char* held = from.held.data() + at * from.row_bytes;
  if (!from.held_proven[at]) {
    require_whole(from, row, held);
    from.held_proven[at] = true;
  }
  return held;
}

template <typename T>
std::vector<T> RunFile::Impl::rows_of(int lane, std::string_view name, int64_t begin,
                                      int64_t count) const {
  const RunDataset& from = dataset(lane, name);
  if (from.kind != value_kind<T>()) throw hdf5::Error(from.where + ": has another type");
  require_rows(from, begin, count);
  std::vector<T> values(static_cast<size_t>(count * element_count(from.row_shape)));
  if (values.empty()) return values;
  if (count > 1) {
    read_rows(from, begin, count, values.data());
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    for (int64_t i = 0; i < count; ++i) {
      require_whole(from, begin + i, bytes + static_cast<size_t>(i) * from.row_bytes);
    }
  } else {
    std::memcpy(values.data(), held_row(from, begin), from.row_bytes);
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

int64_t RunFile::Impl::common_rows(int lane, Rows rows) const {
  int64_t common = std::numeric_limits<int64_t>::max();
  for (const Quantity& quantity : quantities()) {
    if (quantity.rows() != rows || lacks(lane, quantity)) continue;
    common = std::min(common, dataset(lane, quantity.name).rows);
  }
  return common;
}

std::vector<int64_t> RunFile::Impl::complete_steps(int lane, Gathered gathered) const {
  const Quantity& quantity = quantity_of(gathered);
  if (lacks(lane, quantity)) return {};
  const RunDataset& own = dataset(lane, quantity.name);
  const int64_t common = common_rows(lane, quantity.rows());
  auto found = rows_of<int64_t>(lane, quantity.name, 0, common);
  // A kill may leave columns of different lengths. What some column lacks was never complete.
  if (int64_t next = 0; own.rows > common) {
    read_rows(own, common, 1, &next);
    if (next < steps && next > (found.empty() ? -1 : found.back())) {
      throw hdf5::Error(
          fmt::format("{}: step {} lacks numbers that were written with it", own.where, next));
    }
  }
  while (!found.empty() && found.back() >= steps) found.pop_back();
  if (!std::ranges::is_sorted(found) || (!found.empty() && found.front() < 0)) {
    throw hdf5::Error(lane_path(lane, quantity.name) + ": the steps are not in order");
  }
  return found;
}

// Steps that each row of 50-step sums covers; 0 if the row is not complete.
std::vector<int64_t> RunFile::Impl::covered_blocks(int lane) const {
  if (lacks(lane, quantity_of(Gathered::kBlockSteps))) return {};
  const int64_t common = common_rows(lane, Rows::kBlock);
  auto covered = rows_of<int64_t>(lane, quantity_of(Gathered::kBlockSteps).name, 0,
                                  is_closed ? common : std::min(common, steps / kHistogramBlock));
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

std::vector<double> RunFile::loss(int lane) const {
  return impl_->guard([&] {
    return impl_->rows_of<double>(lane, quantity_of(&LaneStep::loss).name, 0, impl_->steps);
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
    if (impl_->lacks(lane, quantity)) return {};
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
    if (impl_->lacks(lane, quantity)) return {};
    return impl_->numbers(lane, quantity, 0, impl_->steps);
  });
}

// Whether row `row` of a kind is as it was written, in every dataset.
bool RunFile::Impl::is_whole(int lane, Rows kind, int64_t row) const {
  const std::string prefix = lane_path(lane, "");
  for (auto at = datasets.lower_bound(prefix); at != datasets.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    const RunDataset& data = at->second;
    if (data.quantity->rows() != kind || data.quantity->is_checksum()) continue;
    try {
      require_whole(data, row, held_row(data, row));
    } catch (const hdf5::Error&) {
      return false;
    }
  }
  return true;
}

// In a run that is not closed, rows of later steps may be of any length and content, and so may be
// the evaluation after the last one and the last, short row of 50-step sums.
int64_t RunFile::Impl::complete_rows(int lane, const RunDataset& from) const {
  const Rows kind = from.quantity->rows();
  if (kind == Rows::kStep) return steps;
  if (is_closed) return from.rows;
  const RunDataset& of_rows = dataset(lane, quantity_of(steps_of(kind)).name);
  std::vector<int64_t> at(static_cast<size_t>(of_rows.rows));
  if (!at.empty()) read_rows(of_rows, 0, of_rows.rows, at.data());
  size_t whole = 0;
  for (; whole < at.size(); ++whole) {
    const int64_t step = at[whole];
    if (kind == Rows::kBlock) {  // how many steps the row covers
      const auto covered = static_cast<int64_t>(whole + 1) * kHistogramBlock;
      if (step != kHistogramBlock || covered > steps) break;
      continue;
    }
    const bool is_last = kind == Rows::kEvaluation && step == steps;
    if (is_last && !is_whole(lane, kind, static_cast<int64_t>(whole))) break;
    const bool is_behind = kind != Rows::kProduct && whole > 0 && step < at[whole - 1];
    if (step < 0 || step >= steps + (kind == Rows::kEvaluation ? 1 : 0) || is_behind) break;
  }
  return static_cast<int64_t>(whole);
}

// All rows of complete steps are whole.
std::optional<RunFile::Impl::DamagedRow> RunFile::Impl::first_damage(int lane,
                                                                     const RunDataset& from,
                                                                     int64_t& rows) const {
  const bool is_death = from.quantity->source == Source(Gathered::kStepChecksums);
  if (from.checksums == nullptr && !is_death) return std::nullopt;
  const int64_t end = complete_rows(lane, from);
  for (int64_t row = 0; row < end; ++row) {
    try {
      if (is_death) {
        require_alive(lanes[static_cast<size_t>(lane)], from, row);
      } else {
        held_row(from, row);
      }
      ++rows;
    } catch (const SandboxError&) {
      throw;  // nothing more can be read
    } catch (const std::runtime_error& error) {
      return DamagedRow{row, printable(error.what(), kMostProblemBytes)};
    }
  }
  return std::nullopt;
}

int64_t RunFile::Impl::steps_before(int lane, const RunDataset& from, int64_t row) const {
  const Rows kind = from.quantity->rows();
  if (kind == Rows::kStep) return row;
  if (kind == Rows::kBlock) return std::min(steps, row * kHistogramBlock);
  // Of the rows before, which may be damaged, too: a smaller number is then found for them.
  int64_t last = -1;
  if (row > 0) {
    read_rows(dataset(lane, quantity_of(steps_of(kind)).name), row - 1, 1, &last);
    if (kind == Rows::kEvaluation) --last;
  }
  return std::clamp<int64_t>(last + 1, 0, steps);
}

std::pair<std::string, int64_t> RunFile::Impl::find_damage() const {
  std::pair<std::string, int64_t> found = {"", steps};
  int64_t rows = 0;
  guard([&] {
    for (int lane = 0; lane < static_cast<int>(lanes.size()); ++lane) {
      const std::string prefix = lane_path(lane, "");
      for (auto at = datasets.lower_bound(prefix); at != datasets.end(); ++at) {
        if (!at->first.starts_with(prefix)) break;
        const auto damage = first_damage(lane, at->second, rows);
        if (!damage) continue;
        const int64_t whole = steps_before(lane, at->second, damage->row);
        if (found.first.empty() || whole < found.second) found = {damage->problem, whole};
      }
    }
  });
  return found;
}

RunFile::Proof RunFile::prove() const {
  Proof proof;
  for (int lane = 0; lane < static_cast<int>(impl_->lanes.size()); ++lane) {
    const std::string prefix = impl_->lane_path(lane, "");
    const RunDatasets& datasets = impl_->datasets;
    for (auto at = datasets.lower_bound(prefix); at != datasets.end(); ++at) {
      if (!at->first.starts_with(prefix)) break;
      const auto damage =
          impl_->guard([&] { return impl_->first_damage(lane, at->second, proof.rows); });
      if (damage) proof.problems.push_back(damage->problem);
    }
  }
  return proof;
}

// For run_file_device.cc and run_file_records.cc.
template std::vector<int64_t> RunFile::Impl::rows_of(int, std::string_view, int64_t, int64_t) const;
template std::vector<double> RunFile::Impl::rows_of(int, std::string_view, int64_t, int64_t) const;
template std::vector<uint32_t> RunFile::Impl::rows_of(int, std::string_view, int64_t,
                                                      int64_t) const;

}  // namespace lockstep

#include "src/record/run/quantity_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <type_traits>

namespace lockstep {
namespace {

template <typename T>
std::vector<std::byte> repeated(double absent, int64_t count) {
  T value{};
  if (std::is_floating_point_v<T> || !std::isnan(absent)) value = static_cast<T>(absent);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(T));
  for (size_t i = 0; i < bytes.size(); i += sizeof(T)) std::memcpy(&bytes[i], &value, sizeof(T));
  return bytes;
}

std::vector<std::byte> absent_row(const QuantityColumn& column) {
  const double absent = column.quantity->absent;
  switch (column.quantity->storage()) {
    case Storage::kF64:
      return repeated<double>(absent, column.width);
    case Storage::kU64:
      return repeated<uint64_t>(absent, column.width);
    case Storage::kI64:
      return repeated<int64_t>(absent, column.width);
    case Storage::kU32:
      return repeated<uint32_t>(absent, column.width);
    case Storage::kI32:
      return repeated<int32_t>(absent, column.width);
    case Storage::kU8:
      return repeated<uint8_t>(absent, column.width);
  }
  return {};
}

// Number `at` of a row. A truth value is stored as 0 or 1 in a byte.
template <typename Value>
Value stored_at(const void* row, size_t at) {
  using Stored = std::conditional_t<std::is_same_v<Value, bool>, uint8_t, Value>;
  Stored value;
  std::memcpy(&value, static_cast<const std::byte*>(row) + at * sizeof value, sizeof value);
  return static_cast<Value>(value);
}

// The records of a site that have rows, by the record of a member.
template <typename Record, typename Site>
auto& part_of(Site& site) {
  if constexpr (std::is_same_v<Record, TensorStats>) return site.stats;
  if constexpr (std::is_same_v<Record, ErrorStats>) return site.error;
  if constexpr (std::is_same_v<Record, UpdateStats>) return site.update.stats;
  if constexpr (std::is_same_v<Record, DecisionStats>) return site.decisions;
  if constexpr (std::is_same_v<Record, AccumulatorHealth>) return site.health;
  if constexpr (std::is_same_v<Record, LossEffect>) return site.effect;
  if constexpr (std::is_same_v<Record, LiveStats>) return site.live;
  if constexpr (std::is_same_v<Record, SiteRecord>) return site;
}

template <typename Record>
constexpr bool kIsOfSite =
    std::is_same_v<Record, TensorStats> || std::is_same_v<Record, ErrorStats> ||
    std::is_same_v<Record, UpdateStats> || std::is_same_v<Record, DecisionStats> ||
    std::is_same_v<Record, AccumulatorHealth> || std::is_same_v<Record, LossEffect> ||
    std::is_same_v<Record, SiteRecord> || std::is_same_v<Record, LiveStats>;

// Whether the site has numbers of this record in a step that measured or counted it so.
template <typename Record>
bool has_part(const SiteRecord& site, const Quantity& quantity) {
  if constexpr (std::is_same_v<Record, UpdateStats>) return site.update.measured;
  if constexpr (std::is_same_v<Record, AccumulatorHealth> || std::is_same_v<Record, LossEffect>) {
    return true;
  }
  return site.measured || (site.counted && quantity.is_counted());
}

template <typename Value, typename Record, typename Work>
void of_member(Value Record::*member, Work& work) {
  if constexpr (kIsOfSite<Record>) work(member);
}

// Calls work(member) if the quantity is one of a site's.
template <typename Work>
void if_of_site(const Quantity& quantity, Work work) {
  std::visit(
      [&]<typename Source>(const Source& source) {
        if constexpr (std::is_member_object_pointer_v<Source>) of_member(source, work);
      },
      quantity.source);
}

}  // namespace

QuantityRow::QuantityRow(const QuantityColumn& column)
    : column_(column), bytes_(absent_row(column)) {}

// A truth value is stored as 0 or 1 in a byte, other types unchanged.
template <typename Value>
void QuantityRow::put(size_t at, Value value) {
  static_assert(sizeof(bool) == 1);
  if ((at + 1) * sizeof(Value) > bytes_.size()) throw std::out_of_range("row of a quantity");
  std::memcpy(&bytes_[at * sizeof(Value)], &value, sizeof(Value));
}

template <typename Record>
void QuantityRow::set_member(size_t at, const Record& record) {
  std::visit(
      [&](const auto& source) {
        if constexpr (std::is_invocable_v<decltype(source), const Record&>) {
          using Value = std::decay_t<decltype(std::invoke(source, record))>;
          if constexpr (std::is_arithmetic_v<Value>) put(at, std::invoke(source, record));
        }
      },
      column_.quantity->source);
}

void QuantityRow::set(size_t at, const SiteRecord& site) {
  const Quantity& quantity = *column_.quantity;
  if_of_site(quantity, [&]<typename Value, typename Record>(Value Record::*member) {
    if (has_part<Record>(site, quantity)) put(at, part_of<Record>(site).*member);
  });
}
void QuantityRow::set(size_t at, const ScalerRecord& scaler) {
  set_member(at, scaler);
}
void QuantityRow::set(size_t at, const WatchedStats& watched) {
  set_member(at, watched);
}
void QuantityRow::set(const Evaluation& evaluation) {
  set_member(0, evaluation);
}

void QuantityRow::set(const DeviceProduct& product) {
  set_member(0, product);
}

void QuantityRow::set_lane(const LaneStep& lane) {
  set_member(0, lane);
  set_member(0, lane.device);
  const auto* several = std::get_if<std::vector<double> LaneStep::*>(&column_.quantity->source);
  if (several == nullptr) return;
  const std::vector<double>& values = lane.**several;
  const auto width = static_cast<size_t>(column_.width);
  for (size_t i = 0; i < width && column_.loss + i < values.size(); ++i) {
    put(i, values[column_.loss + i]);
  }
}

const SiteRecord* measured_site(const LaneStep& lane, size_t site) {
  if (!lane.alive || site >= lane.sites.size() || !lane.sites[site].measured) return nullptr;
  return &lane.sites[site];
}

std::vector<QuantityRow> step_rows(const std::vector<QuantityColumn>& columns,
                                   const LaneStep& lane) {
  std::vector<QuantityRow> rows;
  for (const QuantityColumn& column : columns) {
    const Quantity& quantity = *column.quantity;
    if (quantity.rows() == Rows::kStep && !quantity.is_checksum()) rows.emplace_back(column);
  }
  if (!lane.alive) return rows;
  std::vector<QuantityRow*> by_site;
  size_t sites = 0;
  for (QuantityRow& row : rows) {
    const auto width = static_cast<size_t>(row.column().width);
    if (row.column().quantity->is_wide()) {
      by_site.push_back(&row);
      sites = width;
      continue;
    }
    row.set_lane(lane);
    const auto set_each = [&](const auto& records) {
      for (size_t i = 0; i < std::min(width, records.size()); ++i) row.set(i, records[i]);
    };
    if (row.column().quantity->axis == Axis::kScaler) set_each(lane.scalers);
    if (row.column().quantity->axis == Axis::kWatched) set_each(lane.watched);
  }
  // One pass over the sites: a record is over 2 KB, so walking them once per quantity is slow.
  for (size_t s = 0; s < std::min(sites, lane.sites.size()); ++s) {
    for (QuantityRow* row : by_site) row->set(s, lane.sites[s]);
  }
  return rows;
}

std::vector<QuantityRow> sample_rows(const std::vector<QuantityColumn>& columns,
                                     const LaneStep& lane) {
  std::vector<QuantityRow> rows;
  for (const QuantityColumn& column : columns) {
    if (column.quantity->rows() != Rows::kSample || !column.quantity->is_wide()) continue;
    QuantityRow& row = rows.emplace_back(column);
    const auto sites = std::min(static_cast<size_t>(column.width), lane.sites.size());
    for (size_t s = 0; lane.alive && s < sites; ++s) {
      row.set(s, lane.sites[s]);
    }
  }
  return rows;
}

void take_lane_rows(std::span<const StoredRow> rows, LaneStep& lane) {
  for (const StoredRow& row : rows) {
    const Quantity& quantity = *row.column.quantity;
    const auto width = static_cast<size_t>(row.column.width);
    const auto take_each = [&](const auto& source, auto& records) {
      records.resize(width);
      for (size_t i = 0; i < width; ++i) {
        auto& value = std::invoke(source, records[i]);
        value = stored_at<std::decay_t<decltype(value)>>(row.bytes, i);
      }
    };
    std::visit(
        [&]<typename Source>(const Source& source) {
          if constexpr (std::is_same_v<Source, std::vector<double> LaneStep::*>) {
            std::vector<double>& values = lane.*source;
            values.resize(std::max(values.size(), row.column.loss + width));
            std::memcpy(&values[row.column.loss], row.bytes, width * sizeof(double));
          } else if constexpr (std::is_invocable_v<Source, LaneStep&>) {
            std::memcpy(&std::invoke(source, lane), row.bytes, sizeof(std::invoke(source, lane)));
          } else if constexpr (std::is_invocable_v<Source, DeviceWork&>) {
            std::memcpy(&std::invoke(source, lane.device), row.bytes, sizeof(int64_t));
          } else if constexpr (std::is_invocable_v<Source, ScalerRecord&>) {
            take_each(source, lane.scalers);
          } else if constexpr (std::is_invocable_v<Source, WatchedStats&>) {
            take_each(source, lane.watched);
          }
        },
        quantity.source);
  }
}

void take_site_rows(std::span<const StoredRow> rows, LaneStep& lane) {
  const auto column = [&](const Source& source) {
    return std::ranges::find_if(
               rows, [&](const StoredRow& row) { return row.column.quantity->source == source; })
        ->bytes;
  };
  const void* count = column(&TensorStats::count);
  const void* largest = column(&TensorStats::abs_max);
  const void* updates = column(&UpdateStats::count);
  const void* update_sq = column(&UpdateStats::update_sq);
  for (size_t s = 0; s < lane.sites.size(); ++s) {
    SiteRecord& site = lane.sites[s];
    site.measured = !std::isnan(stored_at<double>(largest, s));  // the largest is never NaN
    site.counted = !site.measured && stored_at<uint64_t>(count, s) > 0;
    // The energy of a measured update may be NaN: only count 0 and NaN together mean none.
    site.update.measured =
        stored_at<uint64_t>(updates, s) > 0 || !std::isnan(stored_at<double>(update_sq, s));
  }
  take_sample_rows(rows, lane);
}

// Some sites at a time, so that their records stay in the cache from one quantity to the next.
void take_sample_rows(std::span<const StoredRow> rows, LaneStep& lane) {
  static const SiteRecord kNone;
  constexpr size_t kTogether = 64;
  for (size_t begin = 0; begin < lane.sites.size(); begin += kTogether) {
    const size_t end = std::min(begin + kTogether, lane.sites.size());
    for (const StoredRow& row : rows) {
      const Quantity& quantity = *row.column.quantity;
      if_of_site(quantity, [&]<typename Value, typename Record>(Value Record::*member) {
        for (size_t s = begin; s < end; ++s) {
          SiteRecord& site = lane.sites[s];
          part_of<Record>(site).*member = has_part<Record>(site, quantity)
                                              ? stored_at<Value>(row.bytes, s)
                                              : part_of<Record>(kNone).*member;
        }
      });
    }
  }
}

}  // namespace lockstep

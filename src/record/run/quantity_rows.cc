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
  set_member(at, site);
  set_member(at, site.stats);
  set_counts(at, site);
  const auto* statistic = std::get_if<const Statistic*>(&column_.quantity->source);
  if (statistic == nullptr || (*statistic)->kind != StatisticKind::kMoment) return;
  put(at, (*statistic)->moment(site.stats, site.error));
}
void QuantityRow::set_counts(size_t at, const SiteRecord& site) {
  const auto* statistic = std::get_if<const Statistic*>(&column_.quantity->source);
  if (statistic == nullptr || (*statistic)->kind != StatisticKind::kCount) return;
  put(at, (*statistic)->count(site.stats, site.error));
}
void QuantityRow::set(size_t at, const UpdateStats& update) {
  set_member(at, update);
}
void QuantityRow::set(size_t at, const DecisionStats& decisions) {
  set_member(at, decisions);
}
void QuantityRow::set(size_t at, const AccumulatorHealth& health) {
  set_member(at, health);
}
void QuantityRow::set(size_t at, const LossEffect& effect) {
  set_member(at, effect);
}
void QuantityRow::set(size_t at, const ScalerRecord& scaler) {
  set_member(at, scaler);
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
    if (row.column().quantity->axis != Axis::kScaler) continue;
    for (size_t i = 0; i < std::min(width, lane.scalers.size()); ++i) row.set(i, lane.scalers[i]);
  }
  // One pass over the sites: a record is over 2 KB, so walking them once per quantity is slow.
  for (size_t s = 0; s < sites; ++s) {
    const SiteRecord* site = measured_site(lane, s);
    const bool updated = s < lane.sites.size() && lane.sites[s].update.measured;
    const bool counted = s < lane.sites.size() && lane.sites[s].counted;
    for (QuantityRow* row : by_site) {
      if (site != nullptr) row->set(s, *site);
      if (counted) row->set_counts(s, lane.sites[s]);
      if (updated) row->set(s, lane.sites[s].update.stats);
      if (site != nullptr) row->set(s, site->decisions);
    }
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
      row.set(s, lane.sites[s].health);
      row.set(s, lane.sites[s].effect);
    }
  }
  return rows;
}

}  // namespace lockstep

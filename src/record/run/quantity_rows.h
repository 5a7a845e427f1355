// The rows of datasets, filled from records and read back into them: both ways go by the member
// that a quantity's row names. Knows nothing of HDF5: a row is bytes of the dataset's own type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/record/run/quantities.h"

namespace lockstep {

// A run's dataset of a quantity: `width` numbers a row, or width sites x bins.
struct QuantityColumn {
  const Quantity* quantity;
  int64_t width = 1;
  size_t loss = 0;  // of Axis::kLoss: which loss
};

class QuantityRow {
 public:
  // Fills the row with the absent value.
  explicit QuantityRow(const QuantityColumn& column);
  const void* data() const { return bytes_.data(); }
  size_t bytes() const { return bytes_.size(); }
  const QuantityColumn& column() const { return column_; }

  // Each of these sets the record's value of the quantity, or nothing if the quantity belongs to
  // another record. `at`: the index of the number in the row.
  void set(size_t at, const SiteRecord& site);  // nothing where the record was not measured
  void set(size_t at, const ScalerRecord& scaler);
  void set(size_t at, const WatchedStats& watched);
  void set(const Evaluation& evaluation);
  void set(const DeviceProduct& product);
  void set_lane(
      const LaneStep& lane);  // numbers, groups, parameters, losses of the lane as a whole

 private:
  template <typename Record>
  void set_member(size_t at, const Record& record);
  template <typename Value>
  void put(size_t at, Value value);

  QuantityColumn column_;
  std::vector<std::byte> bytes_;
};

// The rows of one step for those of `columns` whose quantity has a row in every step, in their
// order. A lane that has died has absent rows.
std::vector<QuantityRow> step_rows(const std::vector<QuantityColumn>& columns,
                                   const LaneStep& lane);
// The rows of a step that sampled sums of products, for the columns of AccumulatorHealth and
// LossEffect.
std::vector<QuantityRow> sample_rows(const std::vector<QuantityColumn>& columns,
                                     const LaneStep& lane);

// A row as its dataset holds it.
struct StoredRow {
  QuantityColumn column;
  const void* bytes = nullptr;
};
// The way back from step_rows() and sample_rows(), which leaves nothing of an earlier step behind
// in the members that have rows. Requires: a lane that has not died.
//   Numbers, groups, parameters, scalers and losses of the lane as a whole.
void take_lane_rows(std::span<const StoredRow> rows, LaneStep& lane);
//   Of all sites; among `rows` are the counts of elements, the extremes and the updates, which say
//   what was measured.
void take_site_rows(std::span<const StoredRow> rows, LaneStep& lane);
//   Of a step that sampled sums of products.
void take_sample_rows(std::span<const StoredRow> rows, LaneStep& lane);

// The record of a site that the lane measured in this step, otherwise null: the record of a dead
// lane may lack sites.
const SiteRecord* measured_site(const LaneStep& lane, size_t site);

}  // namespace lockstep

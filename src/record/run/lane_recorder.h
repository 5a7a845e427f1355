// Writes one lane's steps: the datasets of all recorded quantities (quantities.h), made before step
// 0, then given a row per step. Decides which exponent histograms are kept. Knows nothing of
// flushing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/record/hdf5/growing_dataset.h"
#include "src/record/run/quantity_rows.h"
#include "src/train/observer.h"

namespace lockstep {

// The numbers that decide the widths of a lane's rows.
struct LaneExtent {
  int64_t sites = 0, groups = 1;  // groups: of parameters
  Measuring measuring;
  std::vector<std::string> losses;  // loss_names()
  std::vector<bool> stat_exempt;    // by site
  // Columns of loss_scale: one, or one for each of these losses; then one per group, if groups skip
  // on their own.
  std::vector<std::string> scaler_losses;
  int64_t skipping_groups = 0;
  int64_t gradient_norms = 0;  // parameters whose norms are kept: all for captures, else none
  int64_t watched = 0;         // RunDescription::watched
  bool decides = false;        // the step has recorded decisions
  bool uses_device = false;    // the lane's engine forms sums on a device
  bool is_live = false;        // a monitor's: LaneInfo::is_live()
  int64_t scaler_columns() const {
    return (scaler_losses.empty() ? 1 : static_cast<int64_t>(scaler_losses.size())) +
           skipping_groups;
  }
  int64_t width(Axis axis) const;
};
LaneExtent lane_extent(const RunDescription& description, const LaneDescription& lane);

class LaneRecorder {
 public:
  // Makes the group `lanes`/NAME and everything in it. Throws: hdf5::Error.
  static LaneRecorder create(hid_t lanes, const LaneDescription& lane, int64_t index,
                             const LaneExtent& extent);
  // Opens it again after `steps_complete` steps, with the unfinished 50-step sums as they were
  // after `resume_from` steps.
  static LaneRecorder open(hid_t lanes, const LaneDescription& lane, const LaneExtent& extent,
                           int64_t steps_complete, std::vector<uint64_t> unfinished_sums);

  // `is_measured`: see StepRecord.
  void write_step(int64_t step, bool is_measured, const LaneStep& lane);
  // For a step that is already in the file: only updates the unfinished sums.
  void pass_step(int64_t step, const LaneStep& lane);
  std::vector<uint64_t> recorded_bits_hash(int64_t step) const;  // [site]
  double recorded_loss(int64_t step) const;
  void write_evaluation(int64_t row, const Evaluation& evaluation);
  // Unfinished sums, if any, become a last, short row. It counts only when its length is written:
  // what is written first must be on disk by then.
  void write_unfinished_sums(int64_t steps_done);
  void write_unfinished_length(int64_t steps_done);
  // Before the first new step: the short row of an earlier stop no longer counts. Returns: whether
  // there was one. Must be on disk before its sums change.
  bool drop_short_row(int64_t step);

  const std::vector<uint64_t>& unfinished_sums() const { return sums_; }  // [site * 256]

 private:
  void make(hid_t group, bool create);
  size_t column_of(const Source& source) const;
  GrowingDataset& dataset(Gathered gathered) { return datasets_.at(column_of(gathered)); }
  // The products of earlier steps; later ones no longer count.
  void recall_products(int64_t steps_complete);
  void write_products(int64_t step, const DeviceWork& work);
  // Where each column's checksum is among those of its kind.
  void place_checksums();
  bool is_left_out(size_t column, const void* row) const;
  // Writes a row of a dataset; seal() writes its checksum.
  void write(size_t column, int64_t at, const void* row);
  void write(Gathered gathered, int64_t at, const void* row) {
    write(column_of(gathered), at, row);
  }
  void write(const std::vector<QuantityRow>& rows, int64_t at);
  // Ends the rows of this kind: their checksums are written, if the file has checksums.
  void seal(Gathered checksums, int64_t at);
  // Writes a row and its checksum alone, next to those that the others of its kind have.
  void write_alone(size_t column, int64_t at, const void* row);
  // The row of the block that ends with these steps, without its length or with it.
  void write_sums(int64_t steps_done);
  void write_length(int64_t steps_done);
  void add_to_sums(const LaneStep& lane);
  bool keeps_histogram(int64_t step, bool is_measured, const LaneStep& lane) const;
  void write_histogram(int64_t step, const LaneStep& lane);

  hdf5::Handle group_;
  LaneExtent extent_;
  int64_t site_count_ = 0, histogram_records_ = 0;
  bool died_ = false;
  std::vector<DeviceProduct> products_;  // in the file's order
  std::vector<uint64_t> sums_;
  std::map<Gathered, std::vector<uint64_t>> checksums_;  // of the rows that are being written
  std::vector<size_t> parts_;                            // by column: its place in these
  std::vector<QuantityColumn> columns_;
  std::vector<std::string> names_;        // of the datasets, below the lane's group
  std::vector<GrowingDataset> datasets_;  // in the order of columns_
};

// The bits_hash row of a step: 0 for a site that was not measured.
std::vector<uint64_t> bits_hash_row(const LaneStep& lane, int64_t site_count);

}  // namespace lockstep

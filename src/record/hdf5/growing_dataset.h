// A dataset that gains a row per step: [row, shape...], unlimited in its leading dimension. Wide
// rows are one chunk each and written without HDF5's chunk cache; narrow ones share chunks of
// kRowsPerChunk rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/record/hdf5/hdf5_handle.h"

namespace lockstep {

// A chunk costs an index entry of 32 to 56 bytes, so narrow rows share chunks.
inline constexpr int64_t kRowsPerChunk = 512;

struct DatasetLayout {
  int64_t rows_per_chunk = kRowsPerChunk;
  // A number of the dataset's type, which rows that were left out read as; null: none may be.
  const void* fill = nullptr;
  bool is_compressed = false;
};

class GrowingDataset {
 public:
  GrowingDataset() = default;
  // `shape` is that of one row. Throws: hdf5::Error.
  static GrowingDataset create(hid_t parent, const std::string& name, hid_t type,
                               const std::vector<int64_t>& shape, const DatasetLayout& layout);
  static GrowingDataset open(hid_t parent, const std::string& name);

  int64_t rows() const { return rows_; }
  const std::vector<int64_t>& row_shape() const { return shape_; }
  size_t row_bytes() const { return row_bytes_; }
  // Writes row `row`, growing the dataset where needed. Data in the dataset's own type.
  void write(int64_t row, const void* data);
  // Rows up to `row` exist. What was not written reads as the fill value and takes no space.
  void grow_to(int64_t row);
  // Requires: row < rows() (hdf5::Error otherwise). `out` holds a row of the dataset's own type.
  void read(int64_t row, void* out) const;
  // Rows [begin, begin + count) in order.
  void read_rows(int64_t begin, int64_t count, void* out) const;
  // Throws: hdf5::Error if there are no such rows, or if the file has no space for one of them and
  // no fill value of its own: HDF5 would read zeros.
  void require_written(int64_t begin, int64_t count) const;

 private:
  void require_rows(int64_t begin, int64_t count) const;
  void transfer(int64_t begin, int64_t count, const void* write_from, void* read_into) const;

  std::string name_;
  hdf5::Handle dataset_, type_;
  std::vector<int64_t> shape_;  // of a row
  size_t row_bytes_ = 0;
  int64_t chunk_rows_ = 0;  // 0: not in chunks
  bool has_fill_ = false;
  bool is_direct_ = false;  // a chunk is a row as it is: written without HDF5's chunk cache
  int64_t rows_ = 0;
};

}  // namespace lockstep

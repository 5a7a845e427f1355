#include "src/record/hdf5/growing_dataset.h"

#include <algorithm>

namespace lockstep {

using hdf5::check;
using hdf5::Handle;

GrowingDataset GrowingDataset::create(hid_t parent, const std::string& name, hid_t type,
                                      const std::vector<int64_t>& shape,
                                      const DatasetLayout& layout) {
  const std::string what = "create dataset " + name;
  std::vector<hsize_t> extents = {0}, limits = {H5S_UNLIMITED};
  std::vector<hsize_t> chunk = {static_cast<hsize_t>(layout.rows_per_chunk)};
  for (const int64_t extent : shape) {
    extents.push_back(static_cast<hsize_t>(extent));
    limits.push_back(static_cast<hsize_t>(extent));
    chunk.push_back(static_cast<hsize_t>(extent > 0 ? extent : 1));
  }
  const int rank = static_cast<int>(extents.size());
  const Handle space(H5Screate_simple(rank, extents.data(), limits.data()), what);
  const Handle properties(H5Pcreate(H5P_DATASET_CREATE), what);
  check(H5Pset_obj_track_times(properties.id(), false), what);
  check(H5Pset_chunk(properties.id(), rank, chunk.data()), what);
  if (layout.fill != nullptr) {
    check(H5Pset_fill_value(properties.id(), type, layout.fill), what);
  }
  if (layout.is_compressed) {
    constexpr unsigned kFast = 1;
    check(H5Pset_deflate(properties.id(), kFast), what);
  }
  Handle created(
      H5Dcreate2(parent, name.c_str(), type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
      what);
  created.close();
  return open(parent, name);
}

GrowingDataset GrowingDataset::open(hid_t parent, const std::string& name) {
  const std::string what = "open dataset " + name;
  // A cache of one chunk is enough: rows come in order.
  constexpr size_t kCacheSlots = 1, kCacheBytes = 1 << 20;
  const Handle access(H5Pcreate(H5P_DATASET_ACCESS), what);
  check(H5Pset_chunk_cache(access.id(), kCacheSlots, kCacheBytes, 1.0), what);
  GrowingDataset result;
  result.name_ = name;
  result.dataset_ = Handle(H5Dopen2(parent, name.c_str(), access.id()), what);
  const Handle stored(H5Dget_type(result.dataset_.id()), what);
  result.type_ = Handle(H5Tget_native_type(stored.id(), H5T_DIR_DEFAULT), what);
  result.shape_ = hdf5::array_shape(result.dataset_.id());
  if (result.shape_.empty()) throw hdf5::Error("cannot " + what + ": it has no step axis");
  result.rows_ = result.shape_[0];
  result.shape_.erase(result.shape_.begin());
  result.row_bytes_ = H5Tget_size(result.type_.id());
  for (const int64_t extent : result.shape_) result.row_bytes_ *= static_cast<size_t>(extent);
  const Handle properties(H5Dget_create_plist(result.dataset_.id()), what);
  H5D_fill_value_t fill = H5D_FILL_VALUE_ERROR;
  check(H5Pfill_value_defined(properties.id(), &fill), what);
  result.has_fill_ = fill == H5D_FILL_VALUE_USER_DEFINED;
  std::vector<hsize_t> chunk(result.shape_.size() + 1, 0);
  if (H5Pget_layout(properties.id()) == H5D_CHUNKED) {
    check(H5Pget_chunk(properties.id(), static_cast<int>(chunk.size()), chunk.data()), what);
    result.chunk_rows_ = static_cast<int64_t>(chunk[0]);
    // A copy may be compressed, or have other chunks.
    const bool is_row = std::equal(
        chunk.begin() + 1, chunk.end(), result.shape_.begin(), result.shape_.end(),
        [](hsize_t a, int64_t b) { return a == static_cast<hsize_t>(std::max<int64_t>(b, 1)); });
    result.is_direct_ = chunk[0] == 1 && is_row && H5Pget_nfilters(properties.id()) == 0;
  }
  return result;
}

void GrowingDataset::grow_to(int64_t row) {
  if (row < rows_) return;
  std::vector<hsize_t> extents = {static_cast<hsize_t>(row + 1)};
  extents.insert(extents.end(), shape_.begin(), shape_.end());
  check(H5Dset_extent(dataset_.id(), extents.data()), "grow dataset " + name_);
  rows_ = row + 1;
}

void GrowingDataset::write(int64_t row, const void* data) {
  grow_to(row);
  if (row_bytes_ == 0) return;
  if (!is_direct_) return transfer(row, 1, data, nullptr);
  std::vector<hsize_t> offset(shape_.size() + 1, 0);
  offset[0] = static_cast<hsize_t>(row);
  constexpr uint32_t kNoFilterSkipped = 0;
  check(
      H5Dwrite_chunk(dataset_.id(), H5P_DEFAULT, kNoFilterSkipped, offset.data(), row_bytes_, data),
      "write dataset " + name_);
}

void GrowingDataset::read(int64_t row, void* out) const {
  read_rows(row, 1, out);
}

void GrowingDataset::require_rows(int64_t begin, int64_t count) const {
  if (begin >= 0 && count >= 0 && begin <= rows_ && count <= rows_ - begin) return;
  throw hdf5::Error("cannot read dataset " + name_ + ": rows from " + std::to_string(begin) +
                    " of " + std::to_string(rows_));
}

void GrowingDataset::require_written(int64_t begin, int64_t count) const {
  require_rows(begin, count);
  if (row_bytes_ == 0 || count == 0 || has_fill_) return;
  if (chunk_rows_ == 0) throw hdf5::Error("dataset " + name_ + ": is not in chunks");
  std::vector<hsize_t> offset(shape_.size() + 1, 0);
  for (int64_t row = begin - begin % chunk_rows_; row < begin + count; row += chunk_rows_) {
    offset[0] = static_cast<hsize_t>(row);
    unsigned filters = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    check(H5Dget_chunk_info_by_coord(dataset_.id(), offset.data(), &filters, &address, &bytes),
          "find rows of dataset " + name_);
    if (address == HADDR_UNDEF) {
      throw hdf5::Error("dataset " + name_ + ": row " + std::to_string(row) + " was never written");
    }
  }
}

void GrowingDataset::read_rows(int64_t begin, int64_t count, void* out) const {
  require_rows(begin, count);
  if (count > 0 && row_bytes_ > 0) transfer(begin, count, nullptr, out);
}

void GrowingDataset::transfer(int64_t begin, int64_t count, const void* write_from,
                              void* read_into) const {
  const std::string what = (write_from ? "write dataset " : "read dataset ") + name_;
  std::vector<hsize_t> start(shape_.size() + 1, 0), extents = {static_cast<hsize_t>(count)};
  start[0] = static_cast<hsize_t>(begin);
  extents.insert(extents.end(), shape_.begin(), shape_.end());
  const Handle memory(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                      what);
  const Handle file(H5Dget_space(dataset_.id()), what);
  check(H5Sselect_hyperslab(file.id(), H5S_SELECT_SET, start.data(), nullptr, extents.data(),
                            nullptr),
        what);
  if (write_from != nullptr) {
    check(H5Dwrite(dataset_.id(), type_.id(), memory.id(), file.id(), H5P_DEFAULT, write_from),
          what);
  } else {
    check(H5Dread(dataset_.id(), type_.id(), memory.id(), file.id(), H5P_DEFAULT, read_into), what);
  }
}

}  // namespace lockstep

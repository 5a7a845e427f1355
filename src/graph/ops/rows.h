// Turns a reduction over any dimensions into one over rows. The reduced dimensions move after the
// kept ones: x is read as (rows, cols), and each row holds, in row-major order, the elements that
// are reduced to one number. For ops/*.cc alone.
#pragma once

#include <span>
#include <vector>

#include "src/graph/op.h"

namespace lockstep {

// The dimensions an attribute names, ascending, negative ones counted from the end; an absent or
// empty list means all of them, as in torch. Throws: InputError for one out of range or named
// twice.
std::vector<int64_t> reduced_dims(const Node& node, std::string_view attribute, const Shape& shape);
// One dimension, negative counted from the end. Throws: InputError when out of range, or when x is
// a scalar.
int64_t single_dim(const Node& node, const Shape& shape, int64_t fallback);

// The shape after the reduction: without the dimensions, or with extents of 1 in their place.
Shape reduced_shape(const Shape& shape, std::span<const int64_t> dims, bool keepdim);

struct RowLayout {
  RowLayout(const Shape& shape, std::span<const int64_t> dims);

  int64_t rows = 1, cols = 1;
  bool in_place = true;  // x in memory already is (rows, cols)

  // x as (rows, cols): x itself or `storage`, which is filled.
  template <typename T>
  const T* gather(const KernelSet& kernels, const T* x, std::vector<T>& storage) const {
    if (in_place) return x;
    storage.resize(static_cast<size_t>(rows * cols));
    kernels.movement<T>().strided_copy(to_rows_, x, storage.data());
    return storage.data();
  }

  // Calls write(rows) with an array of (rows, cols), then moves its elements to their places in x.
  template <typename T, typename Write>
  void write_rows(const KernelSet& kernels, T* x, Write write) const {
    if (in_place) return write(x);
    std::vector<T> storage(static_cast<size_t>(rows * cols));
    write(storage.data());
    kernels.movement<T>().strided_copy(from_rows_, storage.data(), x);
  }

 private:
  // The dimensions in the order of the array that is written, the fastest last.
  std::vector<StridedDim> to_rows_, from_rows_;
};

}  // namespace lockstep

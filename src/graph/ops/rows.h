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
  const T* gather(const T* x, std::vector<T>& storage) const;
  // The inverse: rows (rows, cols) into an array of the original shape. Requires: rows != x.
  template <typename T>
  void scatter(const T* rows, T* x) const;

  // Calls write(rows) with an array of (rows, cols), then moves its elements to their places in x.
  template <typename T, typename Write>
  void write_rows(T* x, Write write) const {
    if (in_place) return write(x);
    std::vector<T> storage(static_cast<size_t>(rows * cols));
    write(storage.data());
    scatter(static_cast<const T*>(storage.data()), x);
  }

 private:
  struct Dim {
    int64_t extent, stride;
  };
  template <typename Move>
  void for_each_run(Move move) const;
  std::vector<Dim> kept_, reduced_;  // neighbours that are one run in memory are merged
};

}  // namespace lockstep

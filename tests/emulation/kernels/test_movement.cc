// Strided copies against index arithmetic, and sums over repeated indices in their declared order.
#include <doctest/doctest.h>

#include "emulation/kernels/scalar/elements/gather.h"
#include "emulation/kernels/scalar/elements/strided_copy.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// Element by element, by the definition.
template <typename T>
void copy_by_index(const std::vector<StridedDim>& dims, const T* x, T* y, size_t dim = 0) {
  if (dim == dims.size()) {
    *y = *x;
    return;
  }
  for (int64_t i = 0; i < dims[dim].extent; ++i) {
    copy_by_index(dims, x + i * dims[dim].x_stride, y + i * dims[dim].y_stride, dim + 1);
  }
}

std::vector<float> counting(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

}  // namespace

TEST_CASE("strided_copy: equals index arithmetic in every layout, on one thread and on three") {
  const std::vector<StridedDim> layouts[] = {
      {},                                                // one element
      {{7, 1, 1}},                                       // one run
      {{3, 70, 70}, {70, 1, 1}},                         // merges into one run
      {{37, 1, 50}, {50, 37, 1}},                        // a matrix transposed
      {{5, 24, 24}, {4, 1, 6}, {6, 4, 1}},               // matrices transposed
      {{2, 60, 60}, {3, 4, 20}, {5, 12, 4}, {4, 1, 1}},  // (B,T,H,D) -> (B,H,T,D)
      {{6, 0, 8}, {8, 0, 1}},                            // one element everywhere
      {{4, 3, 10}, {5, 0, 2}, {2, 1, 1}},                // repeated in the middle
      {{4, 20, 9}, {3, 5, 2}},                           // strides on both sides
      {{300, 1, 200}, {200, 300, 1}},                    // large enough for several threads
  };
  for (const auto& layout : layouts) {
    int64_t x_size = 1, y_size = 1;
    for (const StridedDim& dim : layout) {
      x_size += (dim.extent - 1) * dim.x_stride;
      y_size += (dim.extent - 1) * dim.y_stride;
    }
    const std::vector<float> x = counting(static_cast<size_t>(x_size));
    std::vector<float> want(static_cast<size_t>(y_size), 0), got;
    copy_by_index(layout, x.data(), want.data());
    for (const int threads : {1, 3}) {
      const ThreadCountGuard guard(threads);
      got.assign(want.size(), 0);
      strided_copy(layout, x.data(), got.data());
      CHECK(same_bits(got, want));
    }
  }
}

TEST_CASE("pick_rows_backward: every row is a chain over ascending positions") {
  // In FP16, 2048 + 1 is 2048 (ties to even): the order shows.
  const std::vector<int32_t> index = {2, 0, 2, 2};
  const RowPick pick{.outer = 1, .rows = 3, .inner = 1, .index = index.data(), .count = 4};
  std::vector<float> dx(3, 77);
  const Accumulator& fp16 = find_accumulator("fp16");
  pick_rows_backward(pick, std::vector<float>{1, 5, 1, 2048}.data(), dx.data(), fp16);
  CHECK(dx == std::vector<float>{5, 0, 2050});
  pick_rows_backward(pick, std::vector<float>{2048, 5, 1, 1}.data(), dx.data(), fp16);
  CHECK(dx == std::vector<float>{5, 0, 2048});
  RowPick padded = pick;
  padded.skip = 2;
  pick_rows_backward(padded, std::vector<float>{1, 5, 1, 1}.data(), dx.data(), fp16);
  CHECK(dx == std::vector<float>{5, 0, 0});
}

TEST_CASE("pick_elements_backward: the order is that of the positions along the dimension") {
  const std::vector<int32_t> index = {1, 1, 1, 0};
  const ElementPick pick{
      .outer = {0}, .inner = {0}, .stride = 1, .count = 4, .index = index.data()};
  const Accumulator& fp16 = find_accumulator("fp16");
  std::vector<float> dx(2, 0);
  pick_elements_backward(pick, std::vector<float>{1, 1, 2048, 3}.data(), dx.data(), fp16);
  CHECK(dx == std::vector<float>{3, 2050});
  dx = {0, 0};
  pick_elements_backward(pick, std::vector<float>{2048, 1, 1, 3}.data(), dx.data(), fp16);
  CHECK(dx == std::vector<float>{3, 2048});
}

TEST_CASE("gathering: the same bits on one thread and on three") {
  constexpr int64_t kRows = 50, kInner = 40, kCount = 3000;
  std::vector<int32_t> index(kCount);
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i * i % kRows);
  const Format& fp32 = find_format("fp32");
  const auto dy = make_data<float>(2 * kCount * kInner, DataKind::kWide, fp32, 9);
  for (const char* name : {"fp32_fused", "fp16"}) {
    std::vector<float> results[2];
    for (const int threads : {1, 3}) {
      const ThreadCountGuard guard(threads);
      std::vector<float>& dx = results[threads / 3];
      dx.resize(2 * kRows * kInner);
      const RowPick pick{2, kRows, kInner, index.data(), kCount};
      pick_rows_backward(pick, dy.data(), dx.data(), find_accumulator(name));
    }
    CHECK(same_bits(results[0], results[1]));
  }
}

}  // namespace lockstep

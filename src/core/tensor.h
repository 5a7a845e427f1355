// An array of numbers with a shape: 64-byte aligned, row-major. The container (how a number
// is held in memory) is not the format (which numbers may occur): FP16 values are kept in kF32
// containers, which represent them exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep {

enum class Container : uint8_t { kF32, kF64, kI32 };

template <typename T>
constexpr Container container_of() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double> ||
                std::is_same_v<T, int32_t>);
  if constexpr (std::is_same_v<T, float>) return Container::kF32;
  if constexpr (std::is_same_v<T, double>) return Container::kF64;
  return Container::kI32;
}
constexpr size_t bytes_of(Container c) {
  return c == Container::kF64 ? 8 : 4;
}

// Extents, outermost first; empty means a scalar.
using Shape = std::vector<int64_t>;
int64_t element_count(const Shape& shape);  // product of the extents; 1 for a scalar
std::string to_string(const Shape& shape);  // "[64, 1, 28, 28]"

class Tensor {
 public:
  Tensor() = default;
  // Zero-filled. Throws: std::logic_error on a negative extent, std::bad_alloc.
  Tensor(Shape shape, Container container);
  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) noexcept = default;

  template <typename T>
  static Tensor from(Shape shape, const std::vector<T>& values);
  // A tensor in memory that it does not own, with the values that are there; copies have their own
  // memory. Requires: `memory` holds bytes() of it, is 64-byte aligned and outlives the tensor.
  static Tensor over(void* memory, Shape shape, Container container);

  const Shape& shape() const { return shape_; }
  Container container() const { return container_; }
  int64_t size() const { return size_; }
  size_t bytes() const { return static_cast<size_t>(size_) * bytes_of(container_); }
  bool empty() const { return data_ == nullptr; }
  void fill_zero();
  // The same values in the same order. Throws: std::logic_error unless `shape` has as many.
  void reshape(const Shape& shape);

  // Requires: T is the container's type (std::logic_error otherwise).
  template <typename T>
  std::span<T> as() {
    check(container_of<T>());
    return {static_cast<T*>(data_.get()), static_cast<size_t>(size_)};
  }
  template <typename T>
  std::span<const T> as() const {
    check(container_of<T>());
    return {static_cast<const T*>(data_.get()), static_cast<size_t>(size_)};
  }
  void* raw() { return data_.get(); }
  const void* raw() const { return data_.get(); }

  // The same values in another floating container (float to double is exact; double to float
  // rounds to nearest even). kI32 converts only to kI32.
  Tensor to(Container container) const;
  bool same_bits(const Tensor& other) const;

 private:
  struct Free {
    Free() : owns(true) {}
    explicit Free(bool owned) : owns(owned) {}
    void operator()(void* p) const {
      if (owns) std::free(p);
    }
    bool owns;
  };
  void check(Container wanted) const;
  Shape shape_;
  Container container_ = Container::kF32;
  int64_t size_ = 0;
  std::unique_ptr<void, Free> data_;
};

template <typename T>
Tensor Tensor::from(Shape shape, const std::vector<T>& values) {
  Tensor t(std::move(shape), container_of<T>());
  auto out = t.as<T>();
  for (size_t i = 0; i < out.size() && i < values.size(); ++i) out[i] = values[i];
  return t;
}

}  // namespace lockstep

// Memory of tensors and the few conversions between containers.
#include "src/core/tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>

namespace lockstep {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector register

template <typename From, typename To>
void convert(const Tensor& from, Tensor& to) {
  const auto in = from.as<From>();
  const auto out = to.as<To>();
  std::transform(in.begin(), in.end(), out.begin(), [](From x) { return static_cast<To>(x); });
}

std::string name_of(Container container) {
  if (container == Container::kF32) return "float";
  return container == Container::kF64 ? "double" : "int32";
}

}  // namespace

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) throw std::logic_error("negative extent in shape " + to_string(shape));
    if (extent > 0 && count > std::numeric_limits<int64_t>::max() / extent) {
      throw std::bad_array_new_length();
    }
    count *= extent;
  }
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Tensor::Tensor(Shape shape, Container container)
    : shape_(std::move(shape)), container_(container), size_(element_count(shape_)) {
  if (static_cast<uint64_t>(size_) > std::numeric_limits<size_t>::max() / 16) {
    throw std::bad_array_new_length();
  }
  // A tensor without elements still owns memory: empty() means "no tensor".
  const size_t wanted = std::max<size_t>(bytes(), 1);
  data_.reset(std::aligned_alloc(kAlignment, (wanted + kAlignment - 1) / kAlignment * kAlignment));
  if (data_ == nullptr) throw std::bad_alloc();
  fill_zero();
}

Tensor Tensor::over(void* memory, Shape shape, Container container) {
  Tensor tensor;
  tensor.shape_ = std::move(shape);
  tensor.container_ = container;
  tensor.size_ = element_count(tensor.shape_);
  tensor.data_ = std::unique_ptr<void, Free>(memory, Free(/*owned=*/false));
  return tensor;
}

Tensor::Tensor(const Tensor& other) {
  *this = other;
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this == &other) return *this;
  if (other.empty()) {
    *this = Tensor();
    return *this;
  }
  // Same size: keep the memory, because lanes copy weights every step.
  if (empty() || bytes() != other.bytes()) {
    *this = Tensor(other.shape_, other.container_);
  }
  shape_ = other.shape_;
  container_ = other.container_;
  size_ = other.size_;
  std::memcpy(data_.get(), other.data_.get(), bytes());
  return *this;
}

void Tensor::fill_zero() {
  if (!empty()) std::memset(data_.get(), 0, bytes());
}

Tensor Tensor::to(Container container) const {
  if (container == container_ || empty()) return *this;
  if (container == Container::kI32 || container_ == Container::kI32) {
    throw std::logic_error("a tensor of " + name_of(container_) + " does not convert to " +
                           name_of(container));
  }
  Tensor out(shape_, container);
  if (container == Container::kF64) {
    convert<float, double>(*this, out);
  } else {
    convert<double, float>(*this, out);
  }
  return out;
}

void Tensor::reshape(const Shape& shape) {
  if (element_count(shape) != size_) {
    throw std::logic_error("reshape: " + to_string(shape_) + " to " + to_string(shape));
  }
  shape_ = shape;
}

bool Tensor::same_bits(const Tensor& other) const {
  return shape_ == other.shape_ && container_ == other.container_ && empty() == other.empty() &&
         (empty() || std::memcmp(data_.get(), other.data_.get(), bytes()) == 0);
}

void Tensor::check(Container wanted) const {
  if (!empty() && wanted != container_) {
    throw std::logic_error("a tensor of " + name_of(container_) + " read as " + name_of(wanted));
  }
}

}  // namespace lockstep

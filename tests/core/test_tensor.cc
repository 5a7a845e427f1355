// Tensors: memory, conversions, and conversions they refuse.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "src/core/tensor.h"

using namespace lockstep;

TEST_CASE("a new tensor is zero, aligned, and has its shape") {
  const Tensor t({3, 5}, Container::kF64);
  CHECK(t.size() == 15);
  CHECK(t.bytes() == 120);
  CHECK(to_string(t.shape()) == "[3, 5]");
  CHECK(reinterpret_cast<uintptr_t>(t.raw()) % 64 == 0);
  for (const double x : t.as<double>()) CHECK(x == 0);
  CHECK(element_count({}) == 1);
  CHECK(element_count({4, 0, 7}) == 0);
  CHECK_THROWS_AS(Tensor({2, -1}, Container::kF32), std::logic_error);
  CHECK_THROWS_AS(Tensor(Shape(8, int64_t{1} << 40), Container::kF32), std::bad_alloc);
}

TEST_CASE("empty means no tensor, not no elements") {
  CHECK(Tensor().empty());
  const Tensor none({0}, Container::kF32);
  CHECK(!none.empty());
  CHECK(none.as<float>().empty());
  CHECK(!none.same_bits(Tensor()));
}

TEST_CASE("copies are independent") {
  Tensor a = Tensor::from<float>({2}, {1, 2});
  Tensor b = a;
  b.as<float>()[0] = 7;
  CHECK(a.as<float>()[0] == 1);
  const void* memory = b.raw();
  b = a;  // same size: the memory is kept
  CHECK(b.raw() == memory);
  CHECK(b.same_bits(a));
  b = Tensor::from<int32_t>({1, 3}, {1, 2, 3});
  CHECK(b.shape() == Shape{1, 3});
  b = Tensor();
  CHECK(b.empty());
}

TEST_CASE("bits, not values, are compared") {
  const Tensor plus = Tensor::from<float>({1}, {0.0f});
  const Tensor minus = Tensor::from<float>({1}, {-0.0f});
  CHECK(!plus.same_bits(minus));
  CHECK(plus.same_bits(Tensor::from<float>({1}, {0.0f})));
  CHECK(!plus.same_bits(Tensor::from<float>({1, 1}, {0.0f})));
}

TEST_CASE("containers convert where it makes sense") {
  const Tensor doubles = Tensor::from<double>({3}, {0.1, 1 + 0x1p-24, -1e300});
  const Tensor floats = doubles.to(Container::kF32);
  CHECK(floats.as<float>()[0] == 0.1f);
  CHECK(floats.as<float>()[1] == 1.0f);  // a tie: to even
  CHECK(std::isinf(floats.as<float>()[2]));
  CHECK(floats.to(Container::kF64).as<double>()[0] == static_cast<double>(0.1f));
  CHECK_THROWS_AS(floats.to(Container::kI32), std::logic_error);
  CHECK_THROWS_AS(floats.as<double>(), std::logic_error);
}

TEST_CASE("a tensor over given memory shares it; copies do not") {
  alignas(64) float memory[4] = {1, 2, 3, 4};
  Tensor over = Tensor::over(memory, {2, 2}, Container::kF32);
  CHECK(over.as<float>()[3] == 4);
  over.as<float>()[0] = 5;
  CHECK(memory[0] == 5);
  const Tensor moved = std::move(over);
  CHECK(moved.raw() == memory);
  Tensor copy = moved;
  copy.as<float>()[1] = 6;
  CHECK(memory[1] == 2);
  Tensor target = Tensor::over(memory, {4}, Container::kF32);
  target = copy;  // as large: its memory stays
  CHECK(memory[1] == 6);
  target = Tensor({5}, Container::kF32);
  CHECK(target.raw() != memory);
}

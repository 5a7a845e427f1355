// Tensors as .npy files: what is written is read back; damage is found. NumPy itself reads them in
// tests/integration/run/test_save_values.py.
#include "src/core/npy.h"

#include <doctest/doctest.h>

#include "src/core/error.h"

namespace lockstep {
namespace {

TEST_CASE("npy: tensors come back with their bits") {
  const Tensor matrix = Tensor::from<float>({2, 3}, {1, -0.0f, 3, 4, 5, 0x1p-149f});
  const Tensor scalar = Tensor::from<double>({}, {0.1});
  const Tensor vector = Tensor::from<int32_t>({4}, {1, 2, 3, -4});
  for (const Tensor* tensor : {&matrix, &scalar, &vector}) {
    const std::string bytes = npy_bytes(*tensor);
    CHECK((bytes.size() - tensor->bytes()) % 64 == 0);
    const Tensor back = tensor_from_npy(bytes, "x.npy");
    CHECK(back.shape() == tensor->shape());
    CHECK(back.same_bits(*tensor));
  }
}

TEST_CASE("npy: the header by hand") {
  const std::string bytes = npy_bytes(Tensor::from<float>({3}, {1, 2, 3}));
  CHECK(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  CHECK(bytes.substr(10, 60) == "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }   ");
  CHECK(bytes.at(127) == '\n');
}

TEST_CASE("npy: damaged files are refused") {
  const std::string good = npy_bytes(Tensor::from<float>({3}, {1, 2, 3}));
  CHECK_THROWS_AS(tensor_from_npy("", "x.npy"), InputError);
  CHECK_THROWS_AS(tensor_from_npy(good.substr(0, 50), "x.npy"), InputError);
  CHECK_THROWS_AS(tensor_from_npy(good.substr(0, good.size() - 1), "x.npy"), InputError);
  CHECK_THROWS_AS(tensor_from_npy(good + "x", "x.npy"), InputError);
  std::string other = good;
  other.replace(other.find("<f4"), 3, ">f4");
  CHECK_THROWS_AS(tensor_from_npy(other, "x.npy"), InputError);
  other = good;
  other.replace(other.find("(3,)"), 4, "(-1)");
  CHECK_THROWS_AS(tensor_from_npy(other, "x.npy"), InputError);
}

}  // namespace
}  // namespace lockstep

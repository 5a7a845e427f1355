// Layout: magic, version, length of the header (16 bits, little endian), header, values. The header
// is padded with spaces and a line feed, so that the values begin at a multiple of 64.
#include "src/core/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kStart{"\x93NUMPY\x01\x00", 8};
constexpr size_t kNpyAlignment = 64, kLengthBytes = 2, kMostDimensions = 32;

struct Row {
  Container container;
  std::string_view descr;
};
constexpr std::array<Row, 3> kRows = {
    {{Container::kF32, "<f4"}, {Container::kF64, "<f8"}, {Container::kI32, "<i4"}}};

// Python's tuple: (), (3,), (3, 4)
std::string tuple_text(const Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : " ", shape[i]) + ",";
  }
  if (shape.size() > 1) text.pop_back();
  return text + ")";
}

}  // namespace

std::string npy_bytes(const Tensor& tensor) {
  std::string_view descr;
  for (const Row& row : kRows) {
    if (row.container == tensor.container()) descr = row.descr;
  }
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                   descr, tuple_text(tensor.shape()));
  const size_t before = kStart.size() + kLengthBytes;
  const size_t whole =
      (before + header.size() + 1 + kNpyAlignment - 1) / kNpyAlignment * kNpyAlignment;
  header.resize(whole - before - 1, ' ');
  header += '\n';
  std::string bytes(kStart);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(static_cast<const char*>(tensor.raw()), tensor.bytes());
  return bytes;
}

Tensor tensor_from_npy(const std::string& bytes, const std::string& path) {
  const auto wrong = [&](std::string_view what) {
    return InputError(fmt::format("{}: {}", path, what),
                      "a file of `lockstep replay --save-values`");
  };
  const size_t before = kStart.size() + kLengthBytes;
  if (!bytes.starts_with(kStart) || bytes.size() < before) throw wrong("not in NumPy's format 1.0");
  const size_t length = static_cast<unsigned char>(bytes[kStart.size()]) +
                        size_t{256} * static_cast<unsigned char>(bytes[kStart.size() + 1]);
  if (bytes.size() < before + length) throw wrong("the header is cut off");
  const std::string header = bytes.substr(before, length);
  const Row* found = nullptr;
  for (const Row& row : kRows) {
    if (header.find(fmt::format("'descr': '{}'", row.descr)) != std::string::npos) found = &row;
  }
  const size_t open = header.find('('), close = header.find(')', open);
  if (found == nullptr || close == std::string::npos) throw wrong("an unknown header");
  Shape shape;
  for (const std::string& word : split(header.substr(open + 1, close - open - 1), ',')) {
    const std::string digits = word.substr(std::min(word.find_first_not_of(' '), word.size()));
    if (digits.empty()) continue;
    int64_t extent = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9' || extent > INT32_MAX) throw wrong("extents are not numbers");
      extent = extent * 10 + (c - '0');
    }
    shape.push_back(extent);
  }
  // The product of extents is bounded by the file's size before anything is allocated.
  const size_t values = bytes.size() - before - length;
  size_t wanted = bytes_of(found->container);
  for (const int64_t extent : shape) {
    if (extent != 0 && wanted > values / static_cast<size_t>(extent))
      throw wrong("values are missing");
    wanted *= static_cast<size_t>(extent);
  }
  if (wanted != values || shape.size() > kMostDimensions)
    throw wrong("its size is not its shape's");
  Tensor tensor(shape, found->container);
  std::memcpy(tensor.raw(), bytes.data() + before + length, values);
  return tensor;
}

}  // namespace lockstep

// Loops over arrays; tables from codes to values.
#include "emulation/kernels/cuda/codes.h"

#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/kernels/cuda/narrow_code.h"
#include "src/core/chunks.h"

namespace lockstep::cuda {
namespace {

template <typename Word>
void pack_words(const float* x, const NarrowCode& to, Word* codes, int64_t count) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) codes[i] = static_cast<Word>(to(x[i]));
  });
}

// The value of every code.
const std::vector<float>& values_of(Type type) {
  static const std::array<std::vector<float>, 5> tables = [] {
    std::array<std::vector<float>, 5> all;
    for (size_t t = 0; t < all.size(); ++t) {
      const auto type = static_cast<Type>(t);
      if (type == Type::kTf32) continue;  // FP32 words are copied
      all[t].resize(size_t{1} << (8 * bytes_of(type)));
      for (size_t code = 0; code < all[t].size(); ++code) {
        all[t][code] = static_cast<float>(decode(code, format_of(type)));
      }
    }
    return all;
  }();
  return tables[static_cast<size_t>(type)];
}

template <typename Word>
void look_up(const Word* codes, Type type, float* x, int64_t count) {
  const std::vector<float>& values = values_of(type);
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] = values[codes[i]];
  });
}

}  // namespace

std::optional<Type> type_of(const Accumulator& accumulator, const Format* given) {
  const Format* format = given;
  if (format == nullptr && accumulator.operands.size() == 1) format = accumulator.operands[0];
  if (format == nullptr || !accumulator.takes(*format)) return std::nullopt;
  for (const Type type : {Type::kFp16, Type::kBf16, Type::kTf32, Type::kE4m3, Type::kE5m2}) {
    if (&format_of(type) == format) return type;
  }
  return std::nullopt;
}

const Format& format_of(Type type) {
  static const std::array<const Format*, 5> formats = {
      &find_format("fp16"), &find_format("bf16"), &find_format("tf32"), &find_format("fp8_e4m3"),
      &find_format("fp8_e5m2")};
  return *formats.at(static_cast<size_t>(type));
}

int64_t bytes_of(Type type) {
  switch (type) {
    case Type::kFp16:
    case Type::kBf16:
      return 2;
    case Type::kTf32:
      return 4;
    case Type::kE4m3:
    case Type::kE5m2:
      return 1;
  }
  throw std::logic_error("bytes_of: unknown type");
}

void pack_codes(const float* x, Type type, void* codes, int64_t count) {
  if (type == Type::kTf32) {
    std::memcpy(codes, x, static_cast<size_t>(count) * sizeof(float));
  } else if (bytes_of(type) == 2) {
    pack_words(x, NarrowCode(format_of(type)), static_cast<uint16_t*>(codes), count);
  } else {
    pack_words(x, NarrowCode(format_of(type)), static_cast<uint8_t*>(codes), count);
  }
}

void unpack_values(const void* codes, Type type, float* x, int64_t count) {
  if (type == Type::kTf32) {
    std::memcpy(x, codes, static_cast<size_t>(count) * sizeof(float));
  } else if (bytes_of(type) == 2) {
    look_up(static_cast<const uint16_t*>(codes), type, x, count);
  } else {
    look_up(static_cast<const uint8_t*>(codes), type, x, count);
  }
}

}  // namespace lockstep::cuda

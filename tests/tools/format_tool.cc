// Formats on raw files, so that another library (ml_dtypes) can be compared with them.
//
//   lockstep_format_tool decode FORMAT OUT                every code's value, ascending (float64)
//   lockstep_format_tool round FORMAT IN OUT              to nearest even, float32 to float32
//   lockstep_format_tool products FORMAT OUT              x * y of every pair of codes, x slowest,
//                                    in the C++ scalar type (number.h); 8 bits at most (float64)
//   lockstep_format_tool scales FORMAT OUT                every scale code's value (float64)
//   lockstep_format_tool block FORMAT ROWS COLS AXIS IN OUT CODES
//                                    a row-major matrix, float32; its scale codes, one byte each
// All files are little-endian.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/block_quantize.h"
#include "emulation/kernels/quantize.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "tests/emulation/number/number_types.h"

namespace lockstep {
namespace {

std::vector<float> read_floats(const std::string& path) {
  const std::string bytes = read_text_file(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), values.size() * sizeof(float), reinterpret_cast<char*>(values.data()));
  return values;
}

template <typename T>
void write_raw(const std::string& path, const std::vector<T>& values) {
  write_text_file_atomically(
      path, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

void decode_all(const Format& format, const std::string& out) {
  std::vector<double> values(size_t{1} << format.storage_bits());
  for (size_t code = 0; code < values.size(); ++code) values[code] = decode(code, format);
  write_raw(out, values);
}

void round_all(const Format& format, const std::string& in, const std::string& out) {
  std::vector<float> values = read_floats(in);
  quantize<float>(active_kernels(), values, values, {.format = &format}, nullptr);
  write_raw(out, values);
}

// Products of the scalar type itself, not of FP32 numbers rounded to it.
template <typename T>
std::vector<double> all_products() {
  constexpr uint32_t kCodes = uint32_t{1} << T::kFormat.storage_bits();
  std::vector<double> products;
  for (uint32_t x = 0; x < kCodes; ++x) {
    for (uint32_t y = 0; y < kCodes; ++y) {
      products.push_back(static_cast<double>(T::from_bits(x) * T::from_bits(y)));
    }
  }
  return products;
}

void write_products(const std::string& name, const std::string& out) {
  constexpr int kMostBits = 8;
  bool is_known = false;
  for_each_type(kAllTypes, [&](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    if constexpr (T::kFormat.storage_bits() <= kMostBits) {
      if (type.name != name) return;
      write_raw(out, all_products<T>());
      is_known = true;
    }
  });
  if (!is_known) {
    throw InputError("products of '" + name + "': no scalar type of at most 8 bits has this name");
  }
}

void scale_values(const BlockFormat& format, const std::string& out) {
  constexpr int kCodes = 256;
  std::vector<double> values(kCodes);
  for (int code = 0; code < kCodes; ++code) {
    values[static_cast<size_t>(code)] = scale_value(static_cast<uint8_t>(code), format);
  }
  write_raw(out, values);
}

void round_blocks(const BlockFormat& format, const BlockShape& shape, const std::string& in,
                  const std::string& out, const std::string& codes) {
  std::vector<float> values = read_floats(in);
  BlockScales scales;
  quantize_blocks<float>(active_kernels(), values, values, shape, {.format = &format}, nullptr,
                         &scales);
  write_raw(out, values);
  write_raw(codes, scales.codes);
}

int run(const std::vector<std::string>& args) {
  const std::string verb = args.empty() ? "" : args[0];
  if (verb == "decode" && args.size() == 3) {
    decode_all(find_format(args[1]), args[2]);
  } else if (verb == "round" && args.size() == 4) {
    round_all(find_format(args[1]), args[2], args[3]);
  } else if (verb == "products" && args.size() == 3) {
    write_products(args[1], args[2]);
  } else if (verb == "scales" && args.size() == 3) {
    scale_values(find_block_format(args[1]), args[2]);
  } else if (verb == "block" && args.size() == 8) {
    const BlockShape shape{std::atoll(args[2].c_str()), std::atoll(args[3].c_str()),
                           std::atoi(args[4].c_str())};
    round_blocks(find_block_format(args[1]), shape, args[5], args[6], args[7]);
  } else {
    std::cerr << "usage: lockstep_format_tool decode F OUT | round F IN OUT | products F OUT | "
                 "scales F OUT | block F ROWS COLS AXIS IN OUT CODES\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::run({argv + 1, argv + argc});
  } catch (const lockstep::InputError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}

// Reads dot products from vector files.
// These are CSV files with the columns of mma_vectors.csv: one dot product per row, operands as
// hexadecimal storage words. Does not know who computed `d`.
//
//   column     meaning                                            needed
//   a, b       K words each, separated by spaces, k ascending     yes
//   c, d       one word each, in the accumulator's register       no: c = +0; nothing to compare
//   type_ab    f16 bf16 tf32 e4m3 e5m2, or a format's name        unless in the options
//   type_a, type_b     instead of type_ab: they may differ        unless in the options
//   arch, instr, acc   name the accumulator                       unless in the options
//   id, tag, confidence                                           no
//
// Words have all digits of their format. `instr` begins with mma (or mma.sync), wmma, wgmma or
// tcgen05, or with several of them that have the same arithmetic, joined by '/'.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/accumulator/dot.h"

namespace lockstep {

struct DotVector {
  std::string id;  // of the row, or its line number
  const Accumulator* accumulator = nullptr;
  const Format *a_format = nullptr, *b_format = nullptr;
  std::vector<float> a, b;
  double c = 0;
  std::optional<double> d;
  std::optional<uint64_t> d_word;  // d as read
  std::string tag, confidence;

  DotOperands<float> operands() const {
    return {a.data(), b.data(), static_cast<int64_t>(a.size()), a_format, b_format};
  }
};

struct DotVectorOptions {
  const Accumulator* accumulator = nullptr;               // of every row; null: the row's own
  const Format *a_format = nullptr, *b_format = nullptr;  // of every a, b; null: the row's own
};

// Throws: InputError with every problem of the file (at most 20 are listed), each with its line.
std::vector<DotVector> read_dot_vectors(const std::string& path, const DotVectorOptions& options);

// The value of a storage word. TF32 and FP32 words are 32-bit registers.
double decode_word(uint64_t word, const Format& format);
// Hexadecimal digits, with or without 0x, of at most the format's bits (TF32: its 32-bit register).
// Throws: InputError.
uint64_t parse_word(std::string_view text, const Format& format);
// The word of a result, in the accumulator's register format. NaN is the hardware's if that has
// only one (tensor cores: 7fffffff, 7fff), otherwise the format's own.
uint64_t result_word(double result, const Accumulator& accumulator);
// True if the accumulator's result_word gives the hardware's NaN.
bool has_hardware_nan(const Accumulator& accumulator);
// Equal words; any NaN equals any NaN, unless the accumulator's NaN is the hardware's.
bool same_word(uint64_t result, uint64_t expected, const Accumulator& accumulator);
// Equal bits; any NaN equals any NaN.
bool same_result(double result, double expected);

}  // namespace lockstep

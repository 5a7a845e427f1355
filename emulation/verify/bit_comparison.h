// Compares the bits of a unit with those of its model.
// Cases are tuples of operand words. Edge cases are Cartesian products of lists. Random cases are
// drawn from counters, so that a case depends only on the seed and its number. Unit and model get
// whole batches. NaN equals NaN, unless the model specifies which one. Knows no unit.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/verify/hardware_unit.h"

namespace lockstep {

// Random words of one case.
class CaseRandom {
 public:
  CaseRandom(uint64_t seed, uint64_t number);
  uint32_t bits();
  uint32_t below(uint32_t limit);  // [0, limit); limit < 2^16 for an even distribution

 private:
  uint64_t seed_, number_;
  uint32_t block_ = 0;
  std::array<uint32_t, 4> words_ = {};
  size_t used_ = words_.size();
};

// Cases of one batch, operand by operand: operand i of case j is words[i * count + j].
struct CaseBatch {
  const uint32_t* words;
  int64_t count;
  const uint32_t* operand(int i) const { return words + i * count; }
};

struct OperandField {
  std::string name;      // "a0"
  const Format* format;  // of the word's low bits
};

struct BitComparison {
  std::vector<OperandField> fields;
  const Format* result = nullptr;
  bool nan_bits_count = false;  // the model gives the unit's own NaN
  // Every product of lists, one list per field.
  std::vector<std::vector<std::vector<uint32_t>>> edges;
  // Fills one random case, one word per field.
  std::function<void(CaseRandom&, uint32_t* words)> draw;
  // One result word per case. Called from several threads at once.
  std::function<void(const CaseBatch&, uint32_t*results)> unit, model;
};
UnitResult compare_bits(const BitComparison& comparison, const VerifyOptions& options);

// Bits of special and border values of a format: zeros, smallest and largest subnormals, smallest
// normals, powers around one, largest numbers, infinities and NaNs (one quiet, one signalling),
// with both signs.
std::vector<uint32_t> edge_values(const Format& format);
// The same without values that differ only in a last bit.
std::vector<uint32_t> few_edge_values(const Format& format);

}  // namespace lockstep

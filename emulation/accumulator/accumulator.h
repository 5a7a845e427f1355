// How a sum of products is formed.
// An accumulator is a row of the table in accumulator.cc. Policy files name it. The row declares
// order, block length, alignment, kept bits and rounding; emulation/accumulator/dot.h computes the
// sum. Knows nothing of matrices.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/format/format.h"

namespace lockstep {

// The shapes of sums. p[k] = a[k] * b[k], k ascending unless the row has another order.
enum class AccumulatorKind : uint8_t {
  kFusedChain,     // acc = round(acc + p[k])             product exact, one rounding
  kUnfusedChain,   // acc = round(acc + round(p[k]))      two roundings
  kKahan,          // as kUnfusedChain in FP32, with Kahan's running compensation
  kPairwise,       // round(p[k]) joined in a balanced binary tree, the addend last
  kAlignedBlocks,  // tensor cores: emulation/accumulator/aligned_block.h
  kBf16Pairs,      // AVX512-BF16 VDPBF16PS: emulation/accumulator/cpu_dot.h
  kAmxTile,        // AMX TDPBF16PS, TDPFP16PS: emulation/accumulator/cpu_dot.h
  kArmPairs,       // Arm BFDOT and BFMMLA, round to odd: emulation/accumulator/cpu_dot.h
  kArmPairsFused,  // the same with FEAT_EBF16 and FPCR.EBF = 1: emulation/accumulator/cpu_dot.h
};

// How the exact sum of a block is rounded.
enum class BlockOutput : uint8_t {
  kFp32TowardZero,   // F32_RZ: from 2^128 on infinity, below it truncated, subnormals produced
  kE8m13TowardZero,  // E8M13_RZ: the same to 13 fraction bits, in an FP32 register
  kFp16NearestEven,  // F16_RNE: one rounding of the exact sum
};

// The exponent of a product with a zero factor in the search for the common exponent (U2).
enum class ZeroProducts : uint8_t {
  kIgnored,     // none
  kFormatEmin,  // a zero factor has emin of its format
  kFp32Emin,    // a zero factor has FP32's emin, whatever its format
};

// The order in which a promotion interval's products enter its blocks.
enum class ProductOrder : uint8_t {
  kAscending,
  kPairsOfFour,  // k mod 4 in {0, 1} first, then {2, 3}: byte pairs of 32-bit registers
};

// How a TF32 product converts an FP32 register. Sources say that the hardware cuts off the low 13
// bits. cvt.rna.tf32.f32, if it runs first, rounds to nearest away.
enum class Tf32Input : uint8_t { kTruncate, kNearestAway, kNearestEven };

// A tensor core's block, drawn in docs/accumulators.md: n <= L products and one addend, aligned to
// one exponent, truncated to F fraction bits, summed exactly, rounded once.
struct BlockSpec {
  int length = 0;         // L: products per block
  int fraction_bits = 0;  // F: bits kept below the largest exponent
  BlockOutput output = BlockOutput::kFp32TowardZero;
  // E_floor: the common exponent is at least this. It has an effect only if the addend is zero.
  int exponent_floor = kNoFloor;
  // The rules U1 and U2.
  bool keeps_negative_zero = false;  // a negative sum that rounds to zero gives -0
  ZeroProducts zero_products = ZeroProducts::kIgnored;
  // 0: the addend is a term of its block. Otherwise blocks run from zero over this many products.
  // One IEEE addition (to nearest even) then adds their result to the addend.
  int promotion_interval = 0;
  ProductOrder order = ProductOrder::kAscending;
  // FP8 factors are converted to FP16 first: E4M3's subnormals then have exponents below its emin.
  bool factors_as_fp16 = false;
  Tf32Input tf32_input = Tf32Input::kTruncate;  // of rows with TF32 factors

  static constexpr int kNoFloor = -9999;  // below every exponent that products can have
};

// The format whose exponents a block reads from factors of `format`.
inline const Format& factor_format(const BlockSpec& spec, const Format& format) {
  return spec.factors_as_fp16 ? find_format("fp16") : format;
}

// The evidence for a row, the strongest kind first; "" if there is none of a kind. A row without
// any evidence is a definition.
struct Evidence {
  std::string recorded = {};    // stored results that the tests reproduce: hardware, operands
  std::string reported = {};    // results that are not stored: others', or of `verify --hardware`
  std::string simulated = {};   // the part that rests on another simulator
  std::string documented = {};  // vendors' text and machine code that has not run here
  // "recorded: ...; simulated: ...", or "definition".
  std::string text() const;
};

// What a library that forms sums on a GPU may do to them: [cuda] of a policy. Software kernels form
// one chain in the accumulator's order and ignore this. It is a part of the accumulator, because
// nothing else passes from a policy through all ops to the library's call.
struct LibraryRules {
  bool splits_k = true;  // sums may be cut into parts, which are added at the end
  // Products of FP16 and BF16 factors leave the library in the factors' format, not in FP32.
  bool narrow_results = false;
  bool adds_parts_narrow = true;  // parts of narrow results may be added in that format
  int64_t workspace_bytes = int64_t{32} << 20;  // at most this much; 0: none

  auto operator<=>(const LibraryRules&) const = default;
};

struct Accumulator {
  std::string name;  // "fp32_fused", "hopper_bf16", with switches "hopper_bf16+negative_zero"
  AccumulatorKind kind;
  const Format* format;                 // of the values the running sum can take
  const Format* register_format;        // of the addend that enters: fp32 or fp16 (fp64)
  std::vector<const Format*> operands;  // the factors' formats, any mix; empty: any
  BlockSpec block = {};                 // of kAlignedBlocks
  std::string hardware;                 // name in hardware(), or ""
  std::string instruction;              // instructions that sum this way, or ""
  std::string help;
  std::string source;
  Evidence evidence = {};
  LibraryRules library = {};

  bool takes(const Format& operand) const;
  // True if it can form sums without products (bias gradients, means): see accumulate_add.
  bool adds() const {
    return kind == AccumulatorKind::kFusedChain || kind == AccumulatorKind::kUnfusedChain;
  }
};

std::span<const Accumulator> accumulators();

// A row's name, or NAME+SWITCH...; the same name gives the same object.
// Throws: InputError with a did-you-mean; also for a switch that the row does not have.
const Accumulator& find_accumulator(std::string_view name);
// The accumulator with these rules; the same arguments give the same object.
const Accumulator& with_library_rules(const Accumulator& accumulator, const LibraryRules& rules);

// Names for the rules that no stored recording settles, and for the conversion of TF32 inputs
// (docs/accumulators.md#rules-that-can-be-switched). The first option of each question is the
// default: what an H100 does.
struct AccumulatorSwitch {
  std::string_view question;  // "U1"
  std::string_view name;      // "positive_zero"
  std::string_view help;
  bool is_default = false;
  std::string_view source;
  // Applies the switch to a row of tensor cores. False: the question does not apply to the row. The
  // default changes nothing.
  bool (*apply)(Accumulator& row);
};
std::span<const AccumulatorSwitch> accumulator_switches();

// Hardware whose sums a lane may name after '@'.
struct Hardware {
  std::string_view name;  // "hopper"
  std::string_view help;  // chips
  // FP32 registers enter a TF32 product with their low 13 bits ignored.
  bool truncates_tf32 = false;
  bool flushes_bf16 = false;  // conversions to BF16 turn FP32 subnormals into zeros
  // Compute capabilities (10 * major + minor) of the chips that a source names; 0: none.
  std::array<int, 2> capabilities = {};
  // The chip has no FP8 mma.sync; compilers use FP16 instructions instead: rows *_fp8_mma.
  bool emulates_fp8_mma = false;
  // WMMA of TF32 runs in blocks of 4, mma.sync in blocks of 8: the row *_tf32_wmma.
  bool splits_tf32_wmma = false;
  // Sums that fit none of its accumulators keep the policy's accumulator (a whole CPU). Otherwise
  // they are an error, unless their factors are FP32.
  bool runs_other_sums = false;
};
std::span<const Hardware> hardware();
// nullptr when there is no such hardware.
const Hardware* find_hardware(std::string_view name);
// nullptr when no row names a chip of this compute capability.
const Hardware* hardware_of_capability(int capability);

}  // namespace lockstep

// THE table of accumulators and hardware. A new one is a new row here and nothing else.
#include "emulation/accumulator/accumulator.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr auto kFp32 = BlockOutput::kFp32TowardZero;
constexpr auto kE8m13 = BlockOutput::kE8m13TowardZero;
constexpr auto kFp16 = BlockOutput::kFp16NearestEven;

constexpr const char* kRecordings =
    "Khattak, Mikaitis, arXiv 2512.07004, model_validation; MMA-Sim (Xie et al., arXiv 2511.10909)";
constexpr const char* kMmaSim = "MMA-Sim (Xie et al., arXiv 2511.10909)";

// For these, recordings of single instructions with finite numbers near 1 are no evidence: a
// simulator is.
constexpr const char* kBeyondRecordings =
    "special values, zeros, subnormals, overflow, longer chains";
// A sum rounded to FP16 does not show which low bits the alignment cut off.
const char* hidden_cut(BlockOutput output) {
  return output == kFp16 ? "F, " : "";
}
// Compared with the running CPU. The results are not stored, so no test replays them.
std::string verified(const std::string& instructions) {
  return instructions + ": no mismatch in `lockstep verify --hardware`";
}

std::string on_h100(const std::string& instructions) {
  return verified(instructions + " of an H100, 10^9 random dot products each");
}

std::vector<const Format*> named(std::initializer_list<const char*> names) {
  std::vector<const Format*> formats;
  for (const char* name : names) formats.push_back(&find_format(name));
  return formats;
}

std::string block_help(const BlockSpec& s) {
  const char* out = s.output == kFp32    ? "truncated to FP32"
                    : s.output == kE8m13 ? "truncated to E8M13"
                                         : "rounded once to FP16";
  std::string text = "blocks of " + std::to_string(s.length) + " products";
  text += s.promotion_interval == 0 ? " and the running sum" : " from zero";
  text += ", aligned to the largest exponent, cut to " + std::to_string(s.fraction_bits) +
          " fraction bits, summed exactly, " + out;
  if (s.promotion_interval != 0) {
    text += "; every " + std::to_string(s.promotion_interval) +
            " products added to the running sum by an IEEE addition";
  }
  if (s.factors_as_fp16) text += "; factors are converted to FP16 first";
  if (s.order == ProductOrder::kPairsOfFour) text += "; k mod 4 in {0, 1} before {2, 3}";
  return text;
}

class Table {
 public:
  Table() {
    add_chains();
    add_nvidia();
    add_cpu();
  }
  const std::vector<Accumulator>& rows() const { return rows_; }

 private:
  void chain(const char* name, AccumulatorKind kind, const char* format, const char* help,
             const char* source, const char* instruction = "", const Evidence& evidence = {}) {
    const Format& f = find_format(format);
    rows_.push_back({.name = name,
                     .kind = kind,
                     .format = &f,
                     .register_format = &f,
                     .operands = {},
                     .hardware = "",
                     .instruction = instruction,
                     .help = help,
                     .source = source,
                     .evidence = evidence});
  }

  void add_chains() {
    constexpr auto kFused = AccumulatorKind::kFusedChain;
    constexpr auto kUnfused = AccumulatorKind::kUnfusedChain;
    constexpr const char* kIeeeFma = "IEEE 754-2019 section 5.4.1, fusedMultiplyAdd";
    constexpr const char* kIeee = "IEEE 754-2019 section 5.4.1, multiplication and addition";
    chain("fp64_fused", kFused, "fp64",
          "acc = fp64(acc + a[k] * b[k]), k ascending, one rounding per step", kIeeeFma);
    chain("fp32_fused", kFused, "fp32",
          "acc = fp32(acc + a[k] * b[k]), k ascending, one rounding per step", kIeeeFma,
          "VFMADD231PS, FFMA",
          {.recorded = "VFMADD231PS of AMD Zen 5, random and special operands",
           .reported = verified("VFMADD231PS of AMD Zen 5 and of an Intel Xeon")});
    chain("fp32_unfused", kUnfused, "fp32",
          "acc = fp32(acc + fp32(a[k] * b[k])), k ascending, two roundings per step", kIeee,
          "MULPS, ADDPS");
    chain("fp32_kahan", AccumulatorKind::kKahan, "fp32",
          "y = fp32(a[k] * b[k]) - lost; t = acc + y; lost = (t - acc) - y; acc = t, each FP32; an "
          "infinite sum becomes NaN in the next step",
          "W. Kahan, CACM 8(1), 1965; Higham, Accuracy and Stability, 2nd ed., algorithm 4.2");
    chain("fp32_pairwise", AccumulatorKind::kPairwise, "fp32",
          "products rounded to FP32, then added in FP32: neighbours, then pairs, fours, ... "
          "ascending; leftovers are added from the right, the addend last",
          "Higham, Accuracy and Stability, 2nd ed., section 4.1");
    chain(
        "bf16", kFused, "bf16",
        "acc = bf16(acc + a[k] * b[k]), k ascending; product and sum exact, one rounding per step",
        "the FP32 step in BF16; no hardware is claimed");
    chain(
        "fp16", kFused, "fp16",
        "acc = fp16(acc + a[k] * b[k]), k ascending; product and sum exact, one rounding per step",
        "Arm ARM, FMLA (half precision); Intel SDM, VFMADD231PH", "VFMADD231PH, FMLA, HFMA2",
        {.reported = verified("VFMADD231PH of an Intel Xeon"),
         .documented = "FMLA and HFMA2, which have not run on a chip"});
    chain("fp16_unfused", kUnfused, "fp16",
          "acc = fp16(acc + fp16(a[k] * b[k])), k ascending, two roundings per step",
          "IEEE 754-2019 section 5.4.1; Intel SDM, VMULPH and VADDPH", "VMULPH, VADDPH",
          {.reported = verified("single VMULPH and VADDPH of an Intel Xeon")});
  }

  // `unit` continues the hardware's name: "fp16" gives hopper_fp16.
  void blocks(const char* hardware, const char* unit, std::initializer_list<const char*> operands,
              const char* instruction, const BlockSpec& spec, const char* source,
              const Evidence& evidence) {
    std::string name = std::string(hardware) + "_" + unit;
    std::replace(name.begin(), name.end(), '-', '_');
    const char* format = spec.output == kFp32 ? "fp32" : spec.output == kE8m13 ? "e8m13" : "fp16";
    rows_.push_back({.name = name,
                     .kind = AccumulatorKind::kAlignedBlocks,
                     .format = &find_format(format),
                     .register_format = &find_format(spec.output == kFp16 ? "fp16" : "fp32"),
                     .operands = named(operands),
                     .block = spec,
                     .hardware = hardware,
                     .instruction = instruction,
                     .help = block_help(spec),
                     .source = source,
                     .evidence = evidence});
  }

  // The floor of the common exponent: emin of the accumulator minus the integer bits of the sum's
  // register. The generation decides these: 5 with F = 23, 6 with 24, 7 with 25 (U3).
  const int fp32_emin_ = find_format("fp32").emin, fp16_emin_ = find_format("fp16").emin;

  void add_nvidia() {
    const auto spec = [](int length, int bits, BlockOutput out, int floor = BlockSpec::kNoFloor) {
      return BlockSpec{
          .length = length, .fraction_bits = bits, .output = out, .exponent_floor = floor};
    };
    // Evidence of a recording of one instruction. `more`: what else only a simulator supports.
    const auto recorded = [](const std::string& where, const std::string& more) {
      return Evidence{.recorded = where + ", finite numbers near 1",
                      .simulated = more + kBeyondRecordings};
    };
    const Evidence simulated = {.simulated = "everything"};
    // '@hardware' means the first row of that hardware that takes a lane's operands.
    constexpr int kVolta = 5, kAmpere = 6, kHopper = 7;  // integer bits
    for (const BlockOutput out : {kFp32, kFp16}) {
      blocks("volta", out == kFp32 ? "fp16" : "fp16_acc16", {"fp16"}, "mma.m8n8k4",
             spec(4, 23, out, (out == kFp32 ? fp32_emin_ : fp16_emin_) - kVolta), kRecordings,
             recorded("V100", hidden_cut(out)));
    }
    for (const BlockOutput out : {kFp32, kFp16}) {
      blocks("turing", out == kFp32 ? "fp16" : "fp16_acc16", {"fp16"}, "mma.m16n8k8",
             spec(8, 24, out, (out == kFp32 ? fp32_emin_ : fp16_emin_) - kAmpere), kMmaSim,
             simulated);
    }
    struct Recorded {
      const char *hardware, *chip;
    };
    for (const auto& [hardware, chip] : {Recorded{"ampere", "A100"}, {"ada", "RTX 1000 Ada"}}) {
      for (const BlockOutput out : {kFp32, kFp16}) {
        blocks(hardware, out == kFp32 ? "fp16" : "fp16_acc16", {"fp16"}, "mma.m16n8k16",
               spec(8, 24, out, (out == kFp32 ? fp32_emin_ : fp16_emin_) - kAmpere), kRecordings,
               recorded(chip, hidden_cut(out)));
      }
      blocks(hardware, "bf16", {"bf16"}, "mma.m16n8k16", spec(8, 24, kFp32, fp32_emin_ - kAmpere),
             kRecordings, recorded(chip, ""));
      blocks(hardware, "tf32", {"tf32"}, "mma.m16n8k8", spec(4, 24, kFp32, fp32_emin_ - kAmpere),
             kRecordings, recorded(chip, ""));
    }
    const std::initializer_list<const char*> fp8 = {"fp8_e4m3", "fp8_e5m2"};
    constexpr const char* kTwoBlocks = "RTX 1000 Ada, two chained blocks";  // F = 13 shows in FP16
    blocks("ada", "fp8", fp8, "mma.m16n8k32", spec(16, 13, kE8m13), kRecordings,
           recorded(kTwoBlocks, ""));
    blocks("ada", "fp8_acc16", fp8, "mma.m16n8k32", spec(16, 13, kFp16), kRecordings,
           recorded(kTwoBlocks, ""));

    // `seen`: results of this chip that others reported; "" if the project has recordings.
    struct Generation {
      const char *hardware, *k16, *k8, *seen, *seen_wmma;
    };
    for (const Generation& g :
         {Generation{"hopper", "mma.sync k16, wgmma k16", "mma.sync k8, wgmma k8", "", ""},
          {"blackwell", "mma.sync k16, tcgen05 kind::f16", "mma.sync k8, tcgen05 kind::tf32",
           "B200 through WMMA, finite numbers near 1",
           "B200 through WMMA, K = 4, finite numbers near 1"},
          {"rtx-blackwell", "mma.sync k16", "mma.sync k8", "RTX PRO 6000, as the B200",
           "RTX PRO 6000, as the B200"}}) {
      const auto& [hardware, k16, k8, seen, seen_wmma] = g;
      const bool is_recorded = *seen == '\0';
      const auto evidence = [&] {
        return is_recorded ? Evidence{.recorded = "H100 through WMMA, finite numbers near 1",
                                      .reported = on_h100("mma.sync, WMMA and wgmma")}
                           : Evidence{.reported = g.seen, .simulated = "everything"};
      };
      for (const BlockOutput out : {kFp32, kFp16}) {
        blocks(hardware, out == kFp32 ? "fp16" : "fp16_acc16", {"fp16"}, k16,
               spec(16, 25, out, (out == kFp32 ? fp32_emin_ : fp16_emin_) - kHopper), kRecordings,
               evidence());
      }
      blocks(hardware, "bf16", {"bf16"}, k16, spec(16, 25, kFp32, fp32_emin_ - kHopper),
             kRecordings, evidence());
      blocks(hardware, "tf32", {"tf32"}, k8, spec(8, 25, kFp32, fp32_emin_ - kHopper), kMmaSim,
             is_recorded ? Evidence{.reported = on_h100("mma.sync and wgmma")}
                         : Evidence{.simulated = "everything",
                                    .documented = "WMMA compiles to mma.sync k4"});
      // After the row that '@hardware' means.
      Evidence wmma = is_recorded
                          ? Evidence{.recorded = "H100 through WMMA, K = 4, finite numbers near 1",
                                     .reported = on_h100("WMMA")}
                          : Evidence{.reported = seen_wmma, .simulated = "everything"};
      wmma.documented =
          "two m16n8k4 instructions, by machine code of nvcc 13.0 (tests/gpu/README.md)";
      blocks(hardware, "tf32_wmma", {"tf32"}, "wmma m16n16k8",
             spec(4, 25, kFp32, fp32_emin_ - kHopper), kRecordings, wmma);
    }
    blocks("hopper", "fp8", fp8, "wgmma k32", spec(32, 13, kE8m13), kRecordings,
           {.recorded = "H100 from zero, finite numbers near 1", .reported = on_h100("wgmma")});
    blocks("hopper", "fp8_acc16", fp8, "wgmma k32", spec(32, 13, kFp16), kMmaSim,
           {.reported = on_h100("wgmma")});
    add_promoted_wgmma();
    const std::initializer_list<const char*> narrow = {"fp8_e4m3", "fp8_e5m2", "fp6_e3m2",
                                                       "fp6_e2m3", "fp4_e2m1"};
    const Evidence but_fp6 = {.simulated = "everything but FP6 factors, which are extrapolated"};
    struct Instruction {
      const char *hardware, *instruction;
    };
    for (const auto& [hardware, instruction] : {Instruction{"blackwell", "tcgen05 kind::f8f6f4"},
                                                {"rtx-blackwell", "mma.sync kind::f8f6f4"}}) {
      blocks(hardware, "fp8", narrow, instruction, spec(32, 25, kFp32), kMmaSim, but_fp6);
      blocks(hardware, "fp8_acc16", narrow, instruction, spec(32, 25, kFp16), kMmaSim, but_fp6);
    }
    add_compiled_fp8();
  }

  // mma.sync of FP8 on chips without that instruction: factors are converted to FP16, two FP16
  // instructions run from zero, and the addend is added last.
  void add_compiled_fp8() {
    constexpr const char* kSource =
        "NVIDIA in CUTLASS issue 1986; machine code of nvcc 13.0: two HMMA from zero, then the "
        "addition (tests/gpu/README.md); order found by search over recordings";
    const std::string seen =
        "blocks, their order, that the addend comes last; finite numbers near 1";
    struct Compiled {
      const char* hardware;
      Evidence fp32, fp16;
    };
    for (auto& [hardware, fp32, fp16] :
         {Compiled{"hopper",
                   {.reported = on_h100("mma.sync")},
                   {.recorded = "H100: " + seen, .reported = on_h100("mma.sync")}},
          {"blackwell",
           {.reported = "B200: that the addend comes last (the blocks are unsettled: U4)"},
           {.reported = "B200: " + seen}}}) {
      const auto row = [&](const char* unit, const char* as, BlockOutput output,
                           Evidence evidence) {
        BlockSpec compiled = {.length = 16, .fraction_bits = 25, .output = output};
        compiled.promotion_interval = 32;
        compiled.order = ProductOrder::kPairsOfFour;
        compiled.factors_as_fp16 = true;
        if (std::string_view(hardware) != "hopper") {
          evidence.simulated = "F, special values, as " + std::string(hardware) + as;
        }
        evidence.documented = "machine code";
        blocks(hardware, unit, {"fp8_e4m3", "fp8_e5m2"}, "mma.sync m16n8k32", compiled, kSource,
               evidence);
      };
      row("fp8_mma", "_fp16", kFp32, fp32);
      row("fp8_mma_acc16", "_fp16_acc16", kFp16, fp16);
    }
  }

  void add_promoted_wgmma() {
    // Four instructions of K = 32, then the partial sum is added to an FP32 register.
    constexpr int kPromotion = 128;
    BlockSpec promoted{.length = 32, .fraction_bits = 13, .output = kE8m13};
    promoted.promotion_interval = kPromotion;
    blocks("hopper", "fp8_promoted", {"fp8_e4m3", "fp8_e5m2"}, "wgmma k32, FADD", promoted,
           "CUTLASS's default promotion (4 instructions); DeepSeek-V3 report, section 3.3.2",
           {.reported = "cuBLASLt's FP8 products of an H100 without fast accumulation, 12 sizes",
            .documented = "the promotion; blocks as hopper_fp8"});
    rows_.back().format = &find_format("fp32");
  }

  void add_cpu() {
    const auto unit = [&](const char* name, AccumulatorKind kind,
                          std::initializer_list<const char*> operands, const char* hardware,
                          const char* instruction, const char* help, const char* source,
                          const Evidence& evidence) {
      rows_.push_back({.name = name,
                       .kind = kind,
                       .format = &find_format("fp32"),
                       .register_format = &find_format("fp32"),
                       .operands = named(operands),
                       .hardware = hardware,
                       .instruction = instruction,
                       .help = help,
                       .source = source,
                       .evidence = evidence});
    };
    const Evidence vendor_text = {.documented = "everything; has not run on a chip"};
    unit(
        "avx512_bf16", AccumulatorKind::kBf16Pairs, {"bf16"}, "avx512-bf16", "VDPBF16PS",
        "pairs of k: acc = fma(a[0], b[0], fma(a[1], b[1], acc)), FP32 to nearest even, subnormals "
        "flushed in and out",
        "Intel SDM vol. 2, VDPBF16PS; reference vectors measured on Zen 5",
        {.recorded = "AMD Zen 5, random and special operands",
         .reported = verified("VDPBF16PS of AMD Zen 5 and of an Intel Xeon, NaN bits included")});
    unit("amx_bf16", AccumulatorKind::kAmxTile, {"bf16"}, "amx", "TDPBF16PS",
         "per 32 k: even and odd k in two FMA chains from zero, added to each other, then to acc; "
         "subnormals flushed in and out",
         "Intel SDM vol. 2, TDPBF16PS", {.reported = verified("TDPBF16PS of an Intel Xeon")});
    unit("amx_fp16", AccumulatorKind::kAmxTile, {"fp16"}, "amx", "TDPFP16PS",
         "per 32 k: even and odd k in two FMA chains from zero, added to each other, then to acc; "
         "FP32 subnormals flushed",
         "Intel SDM vol. 2, TDPFP16PS", {.reported = verified("TDPFP16PS of an Intel Xeon")});
    unit("arm_bfdot", AccumulatorKind::kArmPairs, {"bf16"}, "arm-bf16", "BFDOT, BFMMLA",
         "pairs of k: acc = acc + (a[0] * b[0] + a[1] * b[1]), each operation rounded to odd, "
         "subnormals flushed in and out",
         "Arm A64 ISA, BFDOT and BFMMLA with FPCR.EBF = 0", vendor_text);
    unit("arm_bfdot_ebf", AccumulatorKind::kArmPairsFused, {"bf16"}, "arm-ebf16", "BFDOT, BFMMLA",
         "pairs of k: s = a[0] * b[0] + a[1] * b[1] rounded once, acc = acc + s rounded once",
         "Arm A64 ISA, BFDOT and BFMMLA with FPCR.EBF = 1, FPCR otherwise 0", vendor_text);
  }

  std::vector<Accumulator> rows_;
};

// The rows that each question of a switch applies to.
bool is_any(const Accumulator&) {
  return true;
}
bool has_floor(const Accumulator& row) {
  return row.block.exponent_floor != BlockSpec::kNoFloor;
}
// Recordings settle the order for FP16 sums.
bool is_compiled(const Accumulator& row) {
  return row.block.order == ProductOrder::kPairsOfFour && row.register_format->is_fp32();
}
bool has_tf32(const Accumulator& row) {
  return row.takes(find_format("tf32"));
}

// A switch that changes `block` in the rows that its question applies to.
template <bool (*kHasQuestion)(const Accumulator&), auto kChange>
bool change(Accumulator& row) {
  if (row.kind != AccumulatorKind::kAlignedBlocks || !kHasQuestion(row)) return false;
  kChange(row.block);
  return true;
}
template <bool (*kHasQuestion)(const Accumulator&)>
constexpr auto keep = change<kHasQuestion, [](BlockSpec&) {}>;

constexpr AccumulatorSwitch kSwitches[] = {
    {.question = "U1",
     .name = "positive_zero",
     .help = "a negative sum that rounds to zero gives +0",
     .is_default = true,
     .source = "H100, `lockstep verify --hardware`; MMA-Sim's older code",
     .apply = keep<is_any>},
    {.question = "U1",
     .name = "negative_zero",
     .help = "a negative sum that rounds to zero gives -0",
     .source = "Khattak and Mikaitis's models; MMA-Sim's newer code; the H100 does otherwise",
     .apply = change<is_any, [](BlockSpec& block) { block.keeps_negative_zero = true; }>},
    {.question = "U2",
     .name = "skip_zero_products",
     .help = "products with a zero factor have no exponent",
     .is_default = true,
     .source = "H100, `lockstep verify --hardware`; Khattak and Mikaitis's models",
     .apply = keep<is_any>},
    {.question = "U2",
     .name = "count_zero_products",
     .help = "a zero factor has exponent emin in the search for the maximum",
     .source = "the exponent that a field of zero encodes; no source claims this",
     .apply =
         change<is_any, [](BlockSpec& block) { block.zero_products = ZeroProducts::kFormatEmin; }>},
    {.question = "U2",
     .name = "mmasim_zero",
     .help = "a zero factor has exponent -126 in the search for the maximum",
     .source = "MMA-Sim",
     .apply =
         change<is_any, [](BlockSpec& block) { block.zero_products = ZeroProducts::kFp32Emin; }>},
    {.question = "U3",
     .name = "carry_floor",
     .help = "the common exponent is at least emin minus the integer bits of the sum's register "
             "(Volta 5, Turing to Ada 6, Hopper on 7)",
     .is_default = true,
     .source =
         "H100, `lockstep verify --hardware`; Khattak and Mikaitis's models, measured on GPUs",
     .apply = keep<has_floor>},
    {.question = "U3",
     .name = "mmasim_floor",
     .help = "the common exponent is at least -126, also where the sum is FP16",
     .source = "MMA-Sim, where a zero addend has exponent -126",
     .apply = change<has_floor,
                     [](BlockSpec& block) { block.exponent_floor = find_format("fp32").emin; }>},
    {.question = "U3",
     .name = "no_floor",
     .help = "the common exponent has no lower bound",
     .source = "no source claims this",
     .apply =
         change<has_floor, [](BlockSpec& block) { block.exponent_floor = BlockSpec::kNoFloor; }>},
    {.question = "U4",
     .name = "split_blocks",
     .help = "FP8 mma.sync: two blocks of 16 products, k mod 4 in {0, 1} first",
     .is_default = true,
     .source =
         "H100, `lockstep verify --hardware`; machine code of nvcc 13.0: two HMMA from zero, FADD "
         "last; B200 recordings agree. Other compilers may differ",
     .apply = keep<is_compiled>},
    {.question = "U4",
     .name = "one_block",
     .help = "FP8 mma.sync: one block of 32 products",
     .source = "fits the same B200 recordings",
     .apply = change<is_compiled,
                     [](BlockSpec& block) {
                       block.length = block.promotion_interval;
                       block.order = ProductOrder::kAscending;
                     }>},
    {.question = "TF32",
     .name = "truncate",
     .help = "the low 13 bits of FP32 registers are cut off",
     .is_default = true,
     .source = "H100, `lockstep verify --hardware`; MMA-Sim: 7f800001 is an infinity",
     .apply = keep<has_tf32>},
    {.question = "TF32",
     .name = "nearest_away",
     .help = "FP32 registers are rounded to TF32, ties away from zero",
     .source = "PTX's cvt.rna.tf32.f32, if it runs before the product",
     .apply =
         change<has_tf32, [](BlockSpec& block) { block.tf32_input = Tf32Input::kNearestAway; }>},
    {.question = "TF32",
     .name = "nearest_even",
     .help = "FP32 registers are rounded to TF32, ties to even",
     .source = "a library that converts this way",
     .apply =
         change<has_tf32, [](BlockSpec& block) { block.tf32_input = Tf32Input::kNearestEven; }>},
};

const AccumulatorSwitch& find_switch(std::string_view name, const std::string& whole) {
  return find_row_or_throw(
      name, kSwitches, "accumulator '" + whole + "': unknown switch '" + std::string(name) + "'");
}

// The row under the switches after its name. Their order does not matter.
std::unique_ptr<const Accumulator> make_variant(const Accumulator& row, std::string_view switches,
                                                const std::string& whole) {
  auto variant = std::make_unique<Accumulator>(row);
  std::map<std::string_view, std::string_view> chosen;  // question -> name
  for (const std::string& name : split(switches, '+')) {
    const AccumulatorSwitch& s = find_switch(name, whole);
    const auto [where, is_new] = chosen.emplace(s.question, s.name);
    if (!is_new && where->second != s.name) {
      throw InputError("accumulator '" + whole + "': '" + std::string(where->second) + "' and '" +
                       std::string(s.name) + "' answer the same question, must be one of them");
    }
    if (is_new && !s.apply(*variant)) {
      throw InputError("accumulator '" + whole + "': " + row.name + " has no switch '" +
                           std::string(s.name) + "'",
                       "`lockstep list switches` shows the question of each switch");
    }
  }
  for (const AccumulatorSwitch& s : kSwitches) {
    const auto found = chosen.find(s.question);
    if (found == chosen.end() || found->second != s.name || s.is_default) continue;
    variant->name += "+" + std::string(s.name);
    variant->help += "; " + std::string(s.help);
  }
  return variant;
}

constexpr Hardware kHardware[] = {
    {.name = "volta", .help = "tensor cores of NVIDIA V100 (sm_70)", .capabilities = {70}},
    {.name = "turing", .help = "tensor cores of NVIDIA T4, RTX 20 (sm_75)", .capabilities = {75}},
    {.name = "ampere",
     .help = "tensor cores of NVIDIA A100, A2, RTX 30 (sm_80, sm_86)",
     .truncates_tf32 = true,
     .capabilities = {80, 86}},
    {.name = "ada",
     .help = "tensor cores of NVIDIA L40, RTX 40 (sm_89)",
     .truncates_tf32 = true,
     .capabilities = {89}},
    {.name = "hopper",
     .help = "tensor cores of NVIDIA H100, H200 (sm_90)",
     .truncates_tf32 = true,
     .capabilities = {90},
     .emulates_fp8_mma = true,
     .splits_tf32_wmma = true},
    {.name = "blackwell",
     .help = "tensor cores of NVIDIA B200 (sm_100)",
     .truncates_tf32 = true,
     .capabilities = {100},
     .emulates_fp8_mma = true,
     .splits_tf32_wmma = true},
    {.name = "rtx-blackwell",
     .help = "tensor cores of NVIDIA RTX 50, RTX PRO 6000 (sm_120)",
     .truncates_tf32 = true,
     .capabilities = {120},
     .splits_tf32_wmma = true},
    {.name = "avx512-bf16",
     .help = "AVX512-BF16 of x86 CPUs: VDPBF16PS, VCVTNEPS2BF16",
     .flushes_bf16 = true},
    {.name = "amx", .help = "AMX tiles of Intel CPUs: TDPBF16PS, TDPFP16PS", .flushes_bf16 = true},
    {.name = "arm-bf16", .help = "Arm's BFDOT and BFMMLA, FPCR.EBF = 0"},
    {.name = "arm-ebf16", .help = "Arm's BFDOT and BFMMLA, FPCR.EBF = 1"},
};

}  // namespace

std::string Evidence::text() const {
  std::string out;
  const auto add = [&](const char* kind, const std::string& what) {
    if (!what.empty()) out += (out.empty() ? "" : "; ") + std::string(kind) + ": " + what;
  };
  add("recorded", recorded);
  add("reported, not at hand", reported);
  add("simulated", simulated);
  add("documented", documented);
  return out.empty() ? "definition" : out;
}

bool Accumulator::takes(const Format& operand) const {
  return operands.empty() ||
         std::find(operands.begin(), operands.end(), &operand) != operands.end();
}

std::span<const Accumulator> accumulators() {
  static const Table table;
  return table.rows();
}

const Accumulator& find_accumulator(std::string_view name) {
  const std::string_view base = name.substr(0, name.find('+'));
  const Accumulator& row =
      find_row_or_throw(base, accumulators(), "accumulator '" + std::string(name) + "': unknown");
  if (base.size() == name.size()) return row;

  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Accumulator>> variants;
  auto variant = make_variant(row, name.substr(base.size() + 1), std::string(name));
  if (variant->name == row.name) return row;
  const std::lock_guard lock(mutex);
  return *variants.try_emplace(variant->name, std::move(variant)).first->second;
}

const Accumulator& with_library_rules(const Accumulator& accumulator, const LibraryRules& rules) {
  if (accumulator.library == rules) return accumulator;
  static std::mutex mutex;
  static std::map<std::pair<std::string, LibraryRules>, std::unique_ptr<const Accumulator>> known;
  const std::lock_guard lock(mutex);
  auto& found = known[{accumulator.name, rules}];
  if (found == nullptr) {
    auto own = std::make_unique<Accumulator>(accumulator);
    own->library = rules;
    found = std::move(own);
  }
  return *found;
}

std::span<const AccumulatorSwitch> accumulator_switches() {
  return kSwitches;
}

std::span<const Hardware> hardware() {
  return kHardware;
}

const Hardware* find_hardware(std::string_view name) {
  return find_row_or_null(name, kHardware);
}

const Hardware* hardware_of_capability(int capability) {
  for (const Hardware& row : kHardware) {
    const auto& chips = row.capabilities;
    if (capability != 0 && std::find(chips.begin(), chips.end(), capability) != chips.end()) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace lockstep

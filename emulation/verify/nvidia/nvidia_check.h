// Does a device compute what the models say?
// Runs instructions on layout checks, random tiles and vector files, and asks which unsettled rules
// the silicon follows. Knows nothing of tables; the device may be software.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "emulation/verify/hardware_unit.h"
#include "emulation/verify/nvidia/mma_device.h"

namespace lockstep {

// Instructions that stand in one row: alike but for the FP8 formats of A and B.
struct NvidiaUnit {
  std::string unit, instruction;  // "mma.sync", "m16n8k16 fp16 to fp32"
  std::vector<mma::Instruction> instructions;
};
// Every instruction of the table in one unit, in the table's order.
std::vector<NvidiaUnit> nvidia_units();

// Do operands arrive where the host put them? Small integers, whose products every model sums
// exactly, through every instruction of the device.
UnitResult check_layouts(mma::Device& device, const VerifyOptions& options);

// options.gpu_cases random dot products judged by the device, a million of them by the host's
// definition too, and the vectors that fit.
UnitResult check_unit(mma::Device& device, const NvidiaUnit& unit, const VerifyOptions& options);

// Which answer to a question does the silicon follow? Mismatches are those of the default.
struct NvidiaProbe {
  std::string_view question;  // "U1"
  std::string_view asks;      // "sign of an underflowed negative sum"
  mma::Pattern pattern;       // of the tiles that ask it
  std::string_view tag;       // what the tags of vectors that ask it begin with, or ""
};
std::span<const NvidiaProbe> nvidia_probes();
UnitResult check_probe(mma::Device& device, const NvidiaProbe& probe, const VerifyOptions& options);

}  // namespace lockstep

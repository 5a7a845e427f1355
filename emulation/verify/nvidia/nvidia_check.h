// Compares the results of a device with the models.
// Runs instructions on layout checks, random tiles and vector files, and finds which unsettled
// rules the silicon follows. Knows nothing of tables; the device may be software.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "emulation/verify/hardware_unit.h"
#include "emulation/verify/nvidia/mma_device.h"

namespace lockstep {

// Instructions that share one row: the same except for the FP8 formats of A and B.
struct NvidiaUnit {
  std::string unit, instruction;  // "mma.sync", "m16n8k16 fp16 to fp32"
  std::vector<mma::Instruction> instructions;
};
// Every instruction of the table is in one unit, in the table's order.
std::vector<NvidiaUnit> nvidia_units();

// Checks that operands arrive where the host put them: small integers, whose products every model
// sums exactly, through every instruction of the device.
UnitResult check_layouts(mma::Device& device, const VerifyOptions& options);

// options.gpu_cases random dot products checked by the device, a million of them also by the host's
// definition, and the vectors that fit.
UnitResult check_unit(mma::Device& device, const NvidiaUnit& unit, const VerifyOptions& options);

// Finds the answer to a question that the silicon follows. Mismatches are those of the default.
struct NvidiaProbe {
  std::string_view question;  // "U1"
  std::string_view asks;      // "sign of an underflowed negative sum"
  mma::Pattern pattern;       // of the tiles that test it
  std::string_view tag;       // prefix of the tags of vectors that test it, or ""
};
std::span<const NvidiaProbe> nvidia_probes();
UnitResult check_probe(mma::Device& device, const NvidiaProbe& probe, const VerifyOptions& options);

}  // namespace lockstep

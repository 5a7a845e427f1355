// Which accumulator does a matrix instruction of an NVIDIA chip compute by?
// From the chip's compute capability and the instruction to a row of the accumulator table, as the
// host's definition (dot.h) and as the rule that devices judge by. Knows nothing of cases.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/verify/nvidia/mma_device.h"

namespace lockstep {

struct NvidiaModel {
  Accumulator accumulator;  // the table's row
  mma::Rule rule;
  std::string name;    // of the row
  std::string choice;  // which unsettled rules it follows instead of the defaults, or ""
};

// Requires: instruction.runs_on(capability), a capability with hardware.
NvidiaModel nvidia_model(int capability, const mma::Instruction& instruction);

// What no recording settles: the questions of accumulator_switches().
inline constexpr std::string_view kTf32Question = "TF32";
inline constexpr std::string_view kUnsettledQuestions[] = {"U1", "U2", "U3", "U4", kTf32Question};

// The model under every answer that is no default, for one question, for each of them in turn, and
// for all of them together (the default model first).
std::vector<NvidiaModel> alternative_models(int capability, const mma::Instruction& instruction,
                                            std::string_view question);
std::vector<NvidiaModel> alternative_models(int capability, const mma::Instruction& instruction);
std::vector<NvidiaModel> combined_models(int capability, const mma::Instruction& instruction);

// The bits of D[row][column] by the host's definition. `start`: the addend's register.
uint32_t host_result(const NvidiaModel& model, const mma::TileBatch& tiles, int64_t tile, int row,
                     int column, uint32_t start);

// "a 3c00 4000 ..., b ..., c ..." of one output.
std::string operands_text(const mma::TileBatch& tiles, int64_t tile, int row, int column,
                          bool from_zero);

}  // namespace lockstep

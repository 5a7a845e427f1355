// The accumulator that models a matrix instruction of an NVIDIA chip.
// The chip's compute capability and the instruction select a row of the accumulator table. It is
// given as the host's definition (dot.h) and as the rule that devices check with. Knows nothing of
// cases.
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
  std::string choice;  // which rules it follows instead of the defaults, or ""
};

// Requires: instruction.runs_on(capability), a capability with hardware.
NvidiaModel nvidia_model(int capability, const mma::Instruction& instruction);

// The questions of accumulator_switches(), which no recording settles.
inline constexpr std::string_view kTf32Question = "TF32";
inline constexpr std::string_view kUnsettledQuestions[] = {"U1", "U2", "U3", "U4", kTf32Question};

// The models under every answer that is not a default: for one question, for each question in turn,
// and for all of them together (the default model first).
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

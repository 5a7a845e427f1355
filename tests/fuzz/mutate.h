// Changes an input at random, so that it stays close to what its reader expects: tokens of TOML and
// JSON, words of a command line, lines of edits. Equal dice give equal results.
#pragma once

#include <string>
#include <vector>

#include "tests/fuzz/target.h"
#include "tests/record/capture/damage.h"  // Dice

namespace lockstep::fuzz {

using testing::Dice;

// Never larger than this: sizes beyond are for readers of files, and every input is one.
inline constexpr size_t kMostInputBytes = size_t{1} << 20;

// `seeds`: valid inputs of the same target, from which tokens and lines are taken.
std::string mutate(const std::string& input, Grammar grammar, const std::vector<std::string>& seeds,
                   Dice& dice);
// The input number `number` of a campaign: the seeds themselves first, then mutations.
std::string input_of(const Target& target, const std::vector<std::string>& seeds, uint64_t seed,
                     uint64_t number);

}  // namespace lockstep::fuzz

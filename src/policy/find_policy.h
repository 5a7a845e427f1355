// Finds policies: the presets embedded in the program, and TOML files. Knows nothing of how their
// text is read.
#pragma once

#include <span>
#include <string_view>

#include "src/policy/policy.h"

namespace lockstep {

// Reads a policy file's text. Throws: InputError with every problem (unknown key, format, op, ...).
Policy parse_policy(std::string_view toml, std::string_view file_name);

// A policy from the text that a run file keeps of it. `name`: NAME[:VERSION] of a preset, whose
// text may name what this version lacks, or a path that ends in ".toml". Throws: as parse_policy.
Policy parse_recorded_policy(std::string_view toml, std::string_view name);

// The truth lane's policy: every value, sum and state is FP64, and nothing is ever cast.
Policy truth_policy();

// All presets, oldest version first within a name.
std::span<const Policy> presets();
// NAME or NAME:VERSION (without a version: the newest), an alias, or a path ending in ".toml".
// Throws: InputError with a did-you-mean.
Policy find_policy(std::string_view name_or_path);

}  // namespace lockstep

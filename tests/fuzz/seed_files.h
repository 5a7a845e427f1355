// Files that targets change or compare with: small run files, checkpoints, a capture, a baseline.
// Made by the program itself, once for a campaign.
#pragma once

#include <string>

namespace lockstep::fuzz {

// Writes them into the folder.
void make_seed_files(const std::string& folder);

}  // namespace lockstep::fuzz

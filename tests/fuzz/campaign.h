// Runs many inputs of one target in processes of their own, so that a crash, a hang or a large
// allocation ends one input and not the campaign.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

inline constexpr double kMostSeconds = 10;                 // of processor time, for one input
inline constexpr double kMostClockSeconds = 60;            // others may have the processor
inline constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // beyond what a worker begins with

struct CampaignOptions {
  uint64_t seed = 1;
  uint64_t first = 0, inputs = UINT64_MAX;  // numbers of the inputs
  double seconds = 0;                       // 0: until all inputs are done
  double most_seconds = kMostSeconds;
  int jobs = 1;
  std::string findings;  // the folder for them
  std::string work;      // a folder for the workers
};

struct Tally {
  uint64_t inputs = 0, accepted = 0, refused = 0, findings = 0;
  double seconds = 0;
  std::map<std::string, uint64_t> kinds;  // the findings, by what they have in common
};

Tally run_campaign(const Target& target, const CampaignOptions& options);
// One input in a worker of its own. Returns: "" or what was found.
std::string run_one(const Target& target, const std::string& input, const CampaignOptions& options);

// Whether each kind of fault is found: prints and returns the number of those that are not.
int test_campaign(const CampaignOptions& options);  // test_campaign.cc

}  // namespace lockstep::fuzz

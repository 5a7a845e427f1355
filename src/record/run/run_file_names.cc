#include "src/record/run/run_file_names.h"

#include <fmt/format.h>

namespace lockstep::run_names {

std::string seed_group(uint64_t seed) {
  return fmt::format("{}/{}", kSeeds, seed);
}

std::string hex(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

}  // namespace lockstep::run_names

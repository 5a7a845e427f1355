#include "src/record/run/run_file_names.h"

#include <fmt/format.h>

namespace lockstep::run_names {

std::string hex(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

}  // namespace lockstep::run_names

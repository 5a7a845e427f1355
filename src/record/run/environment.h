// The machine and program of a run: CPU, instruction sets, compiler, flags, libraries. For people
// who wonder why two files differ; no lane's numbers depend on them.
#pragma once

#include <map>
#include <string>

namespace lockstep {

std::map<std::string, std::string> describe_environment();
std::string utc_now();  // "2025-01-31T12:00:00Z"

}  // namespace lockstep

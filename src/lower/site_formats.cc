// See site_formats.h.
#include "src/lower/site_formats.h"

#include "emulation/format/format.h"

namespace lockstep {

std::vector<std::string> site_formats(const Program& program, size_t site_count) {
  std::vector<std::string> formats(site_count);
  const auto note = [&](int32_t site, const Format* format) {
    if (site >= 0 && format != nullptr) formats.at(static_cast<size_t>(site)) = format->name;
  };
  for (const Instruction& instruction : program.instructions) {
    for (const ValueRounding& rounding : instruction.roundings) {
      for (const int32_t site : rounding.sites) note(site, rounding.format);
    }
    note(instruction.accumulator_site,
         instruction.gemm_accumulator == nullptr ? nullptr : instruction.gemm_accumulator->format);
  }
  return formats;
}

}  // namespace lockstep

// The list of sections, in their order; each file sections/NAME.cc defines its row, NAME_section().
#include "reports/section.h"

#include <vector>

#define LOCKSTEP_SECTIONS(section)                                                          \
  section(capture) section(verdict) section(findings) section(lanes) section(loss)          \
      section(gradients) section(layers) section(updates) section(sums) section(loss_scale) \
          section(provenance)

namespace lockstep {

#define LOCKSTEP_DECLARE(name) Section name##_section();
LOCKSTEP_SECTIONS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::span<const Section> sections() {
#define LOCKSTEP_ROW(name) name##_section(),
  static const std::vector<Section> all = {LOCKSTEP_SECTIONS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return all;
}

std::string report_text(const Report& report, bool summary_only, const TextStyle& style) {
  std::string out;
  for (const Section& section : sections()) {
    if (summary_only && !section.in_summary) continue;
    const Blocks blocks = section.write(report);
    if (blocks.empty()) continue;
    if (!out.empty()) out += "\n";
    out += heading_text(section.title) + to_text(blocks, style);
  }
  return out;
}

}  // namespace lockstep

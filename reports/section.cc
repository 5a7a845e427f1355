// The list of sections.
#include "reports/section.h"

#include <array>

#include "reports/text_writer.h"

namespace lockstep {
namespace {

constexpr std::array kSections = {
    Section{"capture", "Is the import faithful?", true, capture_section},
    Section{"verdict", "Verdict", true, verdict_section},
    Section{"lanes", "Lanes", true, lanes_section},
    Section{"loss", "Training loss over the steps", false, loss_section},
    Section{"gradients", "Gradients beside the captured ones", false, gradients_section},
    Section{"layers", "What rounding did, layer by layer", false, layers_section},
    Section{"updates", "Weight updates that came to nothing", false, updates_section},
    Section{"sums", "Sums of products", false, sums_section},
    Section{"loss-scale", "Loss scale", false, loss_scale_section},
    Section{"provenance", "Where this comes from", false, provenance_section},
};

}  // namespace

std::span<const Section> sections() {
  return kSections;
}

std::string report_text(const Report& report, bool summary_only) {
  std::string out;
  for (const Section& section : sections()) {
    if (summary_only && !section.in_summary) continue;
    const Blocks blocks = section.write(report);
    if (blocks.empty()) continue;
    if (!out.empty()) out += "\n";
    out += heading_text(section.title) + to_text(blocks);
  }
  return out;
}

}  // namespace lockstep

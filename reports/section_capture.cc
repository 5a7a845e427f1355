// Of a replayed capture, before everything else: was its import found faithful?
#include <fmt/format.h>

#include "reports/section.h"
#include "src/core/text.h"
#include "src/train/captured_lane.h"

namespace lockstep {

Blocks capture_section(const Report& report) {
  if (report.options.capture_hash.empty()) return {};
  const std::string& path = report.options.model;
  Blocks blocks;
  if (!report.verification) {
    blocks.push_back(paragraph(fmt::format(
        "{} has not been verified: whether this replay is faithful to the model is not known. Run "
        "`lockstep verify {}`; reports of this run show its result from then on.",
        path, path)));
  } else {
    blocks.push_back(
        paragraph(fmt::format("lockstep verify {}: {}.", path, report.verification->summary())));
    if (!report.verification->passed) {
      blocks.push_back(paragraph("Trust nothing below: the replay is not what the model does."));
    }
  }
  blocks.push_back(paragraph(
      "The lane `captured` is the run as PyTorch made it; of its tensors only losses, loss scale "
      "and norms were recorded."));
  for (const LaneReport& lane : report.lanes) {
    if (lane.info.name != kCapturedLane) continue;
    for (const std::string& line : split(lane.info.policy_text, '\n')) {
      if (!line.starts_with(kCapturedNote)) continue;
      blocks.push_back(paragraph(fmt::format("Note: {}.", line.substr(kCapturedNote.size()))));
    }
  }
  return blocks;
}

}  // namespace lockstep

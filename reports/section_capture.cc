// Of a replayed capture, before everything else: was its import found faithful, and does the loss
// scaler decide here what it decided on the real machine?
#include <fmt/format.h>

#include "reports/number_text.h"
#include "reports/section.h"
#include "src/core/text.h"
#include "src/train/captured/lane.h"

namespace lockstep {
namespace {

std::string found_text(const ScalerRecord& scaler) {
  return fmt::format("found_inf {} at scale {}", scaler.found_inf ? 1 : 0,
                     scale_text(scaler.scale));
}

// "torch-autocast-fp16 first disagrees with it in step 3: found_inf 0 at scale 2^16, captured
// found_inf 1 at scale 2^16"
void add_scaler_agreement(const Report& report, Blocks& out) {
  if (report.captured < 0 || !report.lanes[static_cast<size_t>(report.captured)].has_scaler) return;
  std::string text;
  for (const LaneReport& lane : report.lanes) {
    if (!lane.beside_captured || !lane.has_scaler) continue;
    const auto& first = lane.beside_captured->disagreement;
    text += text.empty() ? "Overflows found by the loss scaler, beside the captured run's: " : "; ";
    text += lane.info.name;
    if (first) {
      text += fmt::format(" first disagrees in step {}: {}, captured {}", first->step,
                          found_text(first->lane), found_text(first->captured));
    } else {
      text += " agrees in " +
              counted(static_cast<uint64_t>(lane.beside_captured->compared_steps), "step");
    }
  }
  if (!text.empty()) out.push_back(paragraph(text + "."));
}

}  // namespace

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
  if (report.captured < 0) {
    blocks.push_back(paragraph(
        "Behind the capture's last step its first one followed (--cycle), which PyTorch never did: "
        "there is no lane of the captured run."));
    return blocks;
  }
  blocks.push_back(paragraph(
      "The lane `captured` is the run as PyTorch made it: losses, loss scale and norms of "
      "gradients. Everything else of it was not measured."));
  add_scaler_agreement(report, blocks);
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

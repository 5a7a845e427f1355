// A replayed capture, before everything else: whether its import is faithful, and whether the loss
// scaler decides here as it did on the real machine.
#include <fmt/format.h>

#include <cmath>

#include "reports/run/section.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"
#include "src/train/lane/captured_lane.h"

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
    text += text.empty() ? "Overflows found by the loss scaler, compared with the captured run's: "
                         : "; ";
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

// "fp32 does what PyTorch did, but departs from it in step 3: loss 1.4393, captured 1.4421, ..."
void add_departure(const Report& report, Blocks& out) {
  for (const LaneReport& lane : report.lanes) {
    if (!lane.beside_captured || !lane.beside_captured->losses) continue;
    const LossComparison& losses = *lane.beside_captured->losses;
    if (losses.step < 0) continue;
    const double distance = std::abs(losses.lane - losses.captured);
    if (losses.departure >= 0) {
      // The gates judge the first step by more than one ulp of the weights.
      const bool is_verified =
          losses.departure == 0 && report.verification && report.verification->passed;
      out.push_back(paragraph(fmt::format(
          "{} does what PyTorch did, but departs from it in step {}: loss {:.6g}, captured "
          "{:.6g}, {:.1e} apart; one ulp of the weights explains {:.1e}. {}",
          lane.info.name, losses.departure, losses.lane, losses.captured, distance, losses.bound,
          is_verified ? "`lockstep verify` passed: FP32 does not determine this loss any closer, "
                        "see its gates."
                      : "The captured loop did something that is not in the capture, or the import "
                        "is wrong: see `lockstep verify`.")));
    } else {
      out.push_back(paragraph(fmt::format(
          "{} does what PyTorch did: losses agree in {} (nearest to the bound in step {}: {:.1e} "
          "apart, at most {:.1e}).",
          lane.info.name, counted(static_cast<uint64_t>(losses.compared_steps), "step"),
          losses.step, distance, losses.bound)));
    }
  }
}

Blocks write_capture(const Report& report) {
  if (report.options.capture_hash.empty()) return {};
  const std::string& path = report.options.model;
  Blocks blocks;
  if (!report.verification) {
    blocks.push_back(paragraph(fmt::format(
        "{} has not been verified, so this replay may not be faithful to the model. Run "
        "`lockstep verify {}`; later reports of this run show its result.",
        path, path)));
  } else {
    blocks.push_back(
        paragraph(fmt::format("lockstep verify {}: {}.", path, report.verification->summary())));
  }
  if (report.captured < 0) {
    blocks.push_back(paragraph(
        "After the last captured step, the replay started again at the first (--cycle). PyTorch "
        "never did that, so there is no lane of the captured run."));
    return blocks;
  }
  blocks.push_back(paragraph(
      "The lane `captured` is PyTorch's own run: losses, loss scale and gradient norms. Nothing "
      "else of it was measured."));
  add_departure(report, blocks);
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

}  // namespace

Section capture_section() {
  return {.name = "capture",
          .title = "Is the import faithful?",
          .in_summary = true,
          .write = write_capture};
}

}  // namespace lockstep

#include "src/cli/verify_capture.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "analysis/faithful/gates.h"
#include "src/cli/command.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/counted.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/capture/verification.h"
#include "src/record/run/environment.h"
#include "src/train/lane/captured_lane.h"

namespace lockstep {
namespace {

void print_gate(const GateResult& gate) {
  print_line(fmt::format("{}  {:12}  {}{}{}", gate.name, to_string(gate.status), gate.subject,
                         gate.figure.empty() ? "" : ": ", gate.figure));
  constexpr size_t kShown = 12;
  for (size_t i = 0; i < gate.details.size() && i < kShown; ++i) {
    print_line("      " + gate.details[i]);
  }
  if (gate.details.size() > kShown) {
    fmt::print("      ... and {} more\n", gate.details.size() - kShown);
  }
  std::fflush(stdout);
}

// "1 step of torchvision.models.resnet.ResNet"; of a part its place in the run.
std::string captured_subject(const Capture& capture) {
  if (!capture.part) {
    return counted(capture.steps.size(), "step") + " of " + capture.model_class;
  }
  const CapturedPart& part = *capture.part;
  std::string text = fmt::format("part {} ({}) in step {} on rank {} of {}", part.module,
                                 part.module_class, part.step, part.rank, part.world_size);
  if (part.kept_rows > 0) {
    text += fmt::format(", the first {} of {} rows and {} of {} tokens", part.kept_rows, part.rows,
                        part.kept_tokens, part.tokens);
  }
  if (!part.placements.empty()) {
    text += fmt::format(", {} split over ranks", counted(part.placements.size(), "weight"));
  }
  return text;
}

}  // namespace

VerifiedCapture verify_gates(Capture capture, const std::function<void(const GateResult&)>& done) {
  VerifiedCapture verified;
  const std::string sha256 = capture.sha256;
  verified.gates = verify_capture(std::move(capture), done);
  const std::vector<GateResult>& gates = verified.gates;
  verified.result = {sha256, LOCKSTEP_VERSION, utc_now(), all_passed(gates), {}};
  for (const GateResult& gate : gates) {
    std::vector<VerifiedGate>& rows = verified.result.gates;
    rows.push_back({gate.name, gate.subject, std::string(to_string(gate.status)), gate.figure, {}});
    const FloorShare& f = gate.floor;
    if (f.tensors == 0) continue;  // a gate without such bounds
    rows.back().floor = {{"tensors", f.tensors},   {"by_floor", f.by_floor},
                         {"by_chaos", f.by_chaos}, {"by_torch", f.by_torch},
                         {"by_terms", f.by_terms}, {"elements", f.elements},
                         {"noise", f.noise}};
  }
  return verified;
}

std::string store_verification(const std::string& path, const Verification& result) {
  try {
    write_verification(path, result);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

int verify_capture_file(const std::string& path, const std::string& json) {
  Capture capture = read_capture(path, CaptureUse::kVerify);
  print_line(fmt::format("{}: {}, PyTorch {} on {}, {}", path, captured_subject(capture),
                         capture.torch_version, capture.device,
                         counted(capture.verify.size(), "verify step")));
  for (const std::string& note : captured_notes(capture)) print_line("note: " + note);
  const auto [gates, result] = verify_gates(std::move(capture), print_gate);
  if (any_failed(gates)) {
    fmt::print("Not faithful: a replay of this capture does not show what the model does.\n");
  } else if (!result.passed) {
    fmt::print("Inconclusive: the capture has no verify step that could be judged.\n");
  } else {
    std::string open;
    for (const GateResult& gate : gates) {
      if (gate.status == GateStatus::kNotRecorded) open += (open.empty() ? "" : ", ") + gate.name;
    }
    fmt::print("{}\n", open.empty()
                           ? "Faithful: every gate that applies has passed."
                           : "Every recorded gate has passed; not recorded: " + open + ".");
  }
  // If the folder cannot be written to, the result is still printed.
  const std::string why_not = store_verification(path, result);
  if (why_not.empty()) {
    print_line("Stored in " + verification_path(path) +
               ". Reports of its replays show the result.");
  } else {
    print_note("warning: not stored next to the capture: " + why_not);
  }
  if (!json.empty()) {
    write_text_file_atomically(json, to_json(result));
    print_line("Wrote " + json);
  }
  if (result.passed) print_line("Next: lockstep replay " + shell_quoted(path));
  if (any_failed(gates)) return kExitRegression;
  return result.passed ? kExitFine : kExitInconclusive;
}

}  // namespace lockstep

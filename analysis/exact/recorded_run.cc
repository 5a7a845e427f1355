// See recorded_run.h.
#include "analysis/exact/recorded_run.h"

#include <fmt/format.h>

#include "src/core/error.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/capture/parts_index.h"
#include "src/record/run/start_from.h"

namespace lockstep {

void make_recorded_run(std::optional<LockstepRun>& run, RunOptions options) {
  if (is_parts_folder(options.model)) {
    throw InputError(fmt::format("'{}': a folder of parts", options.model),
                     "repeat its replay, or replay and compare the capture of one part");
  }
  if (!options.capture_hash.empty()) {
    Capture capture = read_capture(options.model, CaptureUse::kReplay);
    if (capture.sha256 != options.capture_hash) {
      throw InputError(fmt::format("capture '{}' has SHA-256 {}, the recorded run used {}",
                                   options.model, capture.sha256, options.capture_hash),
                       "the capture has been replaced since; put the old one back, or record a "
                       "baseline of the new one");
    }
    run.emplace(options, std::move(capture));
  } else if (options.start_from.empty()) {
    run.emplace(options);
  } else {
    const auto start = read_start(options.start_from);
    run.emplace(options, &start);
  }
}

}  // namespace lockstep

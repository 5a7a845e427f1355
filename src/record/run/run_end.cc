// See run_end.h.
#include "src/record/run/run_end.h"

#include <cstdint>

#include "src/capture/capture.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

bool has_all_steps(const RunFile& run) {
  const int64_t wanted = run.options().steps;
  if (run.steps() < wanted) return false;
  for (int lane = 0; lane < static_cast<int>(run.lanes().size()); ++lane) {
    const bool has_sites = run.lanes()[static_cast<size_t>(lane)].name != kCapturedLane;
    if (has_sites && run.total_histogram_steps(lane) < wanted) return false;
  }
  return true;
}

}  // namespace lockstep

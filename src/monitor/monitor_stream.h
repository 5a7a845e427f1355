// What a monitor in the user's training loop sends, as a run's description and records. The sender
// is lockstep_capture.Monitor (python/lockstep_capture/monitor/); docs/monitor.md has the layout.
// Knows nothing of HDF5.
#pragma once

#include <cstdint>
#include <istream>
#include <string>

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/train/run_description.h"
#include "src/train/run_options.h"
#include "src/train/step_record.h"

namespace lockstep {

// A monitored run before its first step. It holds what the description points to.
struct MonitoredRun {
  Graph graph;  // the parameters alone
  SiteTable sites;
  RunOptions options;
  LaneDescription lane;
  std::string data;
  int64_t group_count = 1;  // of parameters, each with a learning rate

  RunDescription description() const;
};

// The first line of the stream. Throws: InputError with everything that is wrong in it.
MonitoredRun read_monitored_run(std::istream& in);

// The next step into `record`. Returns: false at the end of the stream, which a line says, or which
// comes between two steps or in one, as where the loop was killed. Throws: InputError for anything
// else.
bool read_monitored_step(std::istream& in, const MonitoredRun& run, StepRecord& record);

}  // namespace lockstep

// Checkpoints: the full state of a run next to its file, PATH.state (newest) and PATH.state.1 (the
// previous one), each complete or absent. `read_checkpoint` in run_file.h reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/train/observer.h"

namespace lockstep {

// State of the recording, not of the run, that must be kept with it.
struct RecordState {
  std::string run_hash;
  std::vector<std::string> lane_names;
  std::vector<std::vector<uint64_t>> unfinished_sums;  // per lane, [site * 256]
};
struct Checkpoint {
  RunState run;
  RecordState record;
};

// Writes PATH.state.tmp, syncs it, and renames. Throws: WriteError; the older files are kept.
void write_checkpoint(const std::string& run_path, const RunStateView& run,
                      const RecordState& record);

// The newest one with steps_done <= limit whose run_hash is not in `others` (the same file's other
// seeds). Throws: InputError if one is damaged.
std::optional<Checkpoint> find_checkpoint(const std::string& run_path, int64_t limit,
                                          const std::vector<std::string>& others = {});

// A checkpoint by its own path. Throws: InputError if it is missing or damaged.
Checkpoint read_checkpoint_file(const std::string& path);

void remove_checkpoints(const std::string& run_path);

}  // namespace lockstep

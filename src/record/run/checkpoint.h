// Checkpoints: the full state of a run next to its file, PATH.state (newest) and PATH.state.1 (the
// previous one), each complete or absent. read_checkpoint() reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/record/run/run_reader.h"
#include "src/train/observer.h"

namespace lockstep {

// State of the recording, not of the run, that must be kept with it.
struct RecordState {
  RunIdentity run;
  std::vector<std::string> lane_names;
  std::vector<std::vector<uint64_t>> unfinished_sums;  // per lane, [site * 256]
};
struct Checkpoint {
  RunState run;
  RecordState record;
};

// Writes PATH.state.tmp with a checksum, syncs it, and renames. Throws: WriteError; the older files
// are kept.
void write_checkpoint(const std::string& run_path, const RunStateView& run,
                      const RecordState& record);

// The newest one with steps_done <= limit that is of this run. Others are left from a run that this
// one replaced, or of another seed. Throws: InputError if one is damaged.
std::optional<Checkpoint> find_checkpoint(const std::string& run_path, int64_t limit,
                                          const RunIdentity& run = {});

// A checkpoint by its own path. It is read in a child process and checked against the schema;
// whether it fits a model is for who restores it. Throws: InputError if it is missing or damaged.
Checkpoint read_checkpoint_file(const std::string& path);

// PATH.state and PATH.state.1.
std::vector<std::string> checkpoint_paths(const std::string& run_path);
void remove_checkpoints(const std::string& run_path);

// The newest checkpoint of `run_path` that is not past `steps_complete` and is of this run; nothing
// if there is none. Throws: InputError if a checkpoint is damaged.
std::optional<RunState> read_checkpoint(const std::string& run_path, int64_t steps_complete,
                                        const RunIdentity& run = {});

}  // namespace lockstep

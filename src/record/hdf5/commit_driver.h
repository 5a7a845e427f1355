// An HDF5 file driver with which a step reaches the disk completely or not at all. It holds HDF5's
// metadata back in memory until commit(). Raw data go straight to space that nothing on disk points
// to yet. A commit reserves the space it needs, then writes new metadata, and only then the places
// that lead to it. So neither a kill nor a full disk between any two writes can damage what was
// committed before. Knows nothing of runs. Not modelled: power loss (nothing is synced unless
// requested) and file systems that need space to overwrite in place.
// HDF5 1.10.8 alone was seen to fail: its own order of flushes lost complete rows at a kill and
// damaged the file on a full disk, and files in SWMR mode were unreadable after a kill.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <string>

namespace lockstep {

class CommitFile;

// A file access property list that opens files through the driver. The caller closes it.
// Returns: negative on failure.
hid_t commit_driver_access();

// The driver's side of an open file. Requires: `file` was opened with commit_driver_access().
CommitFile& commit_file(hid_t file);

// Writes what HDF5 has flushed since the last commit. Returns: false if the disk refused this or
// any earlier write. From then on the file is not touched, later writes are dropped, and closing it
// changes nothing. HDF5 itself never sees a failed write.
bool commit(CommitFile& file);
// The errno of the write that failed, 0 when none has.
int write_error(const CommitFile& file);

// From here on this process only rehearses: files are opened for reading, nothing reaches the disk,
// and every write and commit succeeds. For a child process that tries whether HDF5 can read a file
// of unknown origin.
void rehearse_commits();

// A fault at a chosen write, so that tests can try every write.
enum class WriteFault {
  kNone,
  kKill,  // SIGKILL before the write
  kTear,  // SIGKILL after the part of the write on its first page
  kFull,  // this and every later write or reservation fails with ENOSPC
};
// The fault happens after `after` successful writes and reservations. Process-wide.
void set_write_fault(WriteFault fault, int64_t after);
// Writes and reservations since the last set_write_fault().
int64_t write_count();

}  // namespace lockstep

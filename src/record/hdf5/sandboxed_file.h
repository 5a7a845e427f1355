// An HDF5 file of unknown origin, read by a child process (sandbox.h): its tree first, then rows of
// large datasets as they are asked for. libhdf5 never touches such a file in this process.
//
// The child protects from faults of libhdf5 (1.10.8), which fuzzing our own readers can neither
// find in all files nor mend. Of 2 000 copies of a run file with one flipped bit each, one ended a
// plain reader of all objects with SIGSEGV (108 were refused, in the others the bit lay in
// numbers); of 896 copies of an earlier file 13 ended `report`. In this process such a file would
// end a replay that reads its checkpoint, or a check in CI, without a word about the file. From a
// child it is an error that names the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/hdf5/tree_dump.h"

namespace lockstep {

// The contents that a file of any size may have: texts, such as graphs and policies.
inline constexpr uint64_t kLeastFileContent = 64 << 20;
// Limits that a file of this many bytes justifies. `growth`: bytes in memory per byte of the file.
SandboxLimits limits_of_file(uint64_t file_bytes, uint64_t least_content = kLeastFileContent,
                             uint64_t growth = 1);

class SandboxedFile {
 public:
  // Throws: hdf5::Error: the file breaks a rule of dump_tree; its text may hold anything.
  // std::runtime_error: the child met a limit or crashed.
  SandboxedFile(const std::string& path, const DumpRequest& request, const SandboxLimits& limits);

  StoredNode& tree() { return tree_; }
  // Rows [begin, begin + count) of a dataset, `row_bytes` each, into `out`. Throws as above; also
  // hdf5::Error if a row was never written: HDF5 would return fill values.
  void read_rows(const std::string& path, int64_t begin, int64_t count, size_t row_bytes,
                 void* out);

 private:
  std::unique_ptr<Sandbox> child_;
  StoredNode tree_;
};

}  // namespace lockstep

// Writes the whole of an HDF5 file as the records of capture_tree.h. Runs in a child process
// (sandbox.h), because libhdf5 may crash or hang on a malicious file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/record/capture/sandbox.h"

namespace lockstep {

// Writes every group, dataset and attribute of the HDF5 data that begins at byte `block`. Refuses
// links other than hard ones, objects that are in the file twice, filters that are plug-ins, types
// other than numbers and texts, names and texts that are not UTF-8 or have control characters, and
// more than `most_bytes` of data; the reason is then the last record. Groups and datasets are
// skipped if `is_wanted` is false for their path.
void dump_capture(const std::string& path, uint64_t block, uint64_t most_bytes,
                  const std::function<bool(std::string_view path)>& is_wanted,
                  const SandboxWrite& write);

}  // namespace lockstep

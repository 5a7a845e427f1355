// The whole of an HDF5 file as the records of capture_tree.h. Runs in a child process
// (sandbox.h): libhdf5 may crash or hang on a file made for that.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/record/capture/sandbox.h"

namespace lockstep {

// Writes every group, dataset and attribute of the HDF5 data that begins at byte `block`. Links
// but hard ones, objects that stand in the file twice, filters that are plug-ins, types other than
// numbers and texts, names and texts that are not UTF-8 or hold control characters, and more than
// `most_bytes` of data are refused; the reason is then the last record. Groups and datasets whose
// path `is_wanted` does not want are not looked at.
void dump_capture(const std::string& path, uint64_t block, uint64_t most_bytes,
                  const std::function<bool(std::string_view path)>& is_wanted,
                  const SandboxWrite& write);

}  // namespace lockstep

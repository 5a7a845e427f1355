// Writes an HDF5 file as the records of stored_tree.h. Runs in a child process (sandbox.h), because
// libhdf5 may crash or hang on a malicious file.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/record/hdf5/sandbox.h"
#include "src/record/hdf5/stored_tree.h"

namespace lockstep {

// How much of a group or dataset is read. For a group, kExtent means kContents; its members are
// chosen again one by one.
enum class Wanted : uint8_t { kNothing, kExtent, kContents };

struct DumpRequest {
  uint64_t block = 0;  // the byte at which the HDF5 data begin
  // Refused: more uncompressed data than this, extents of datasets not counted.
  uint64_t most_bytes = 0;
  TextRule texts = TextRule::kPrintable;  // of values; names are always printable
  std::function<Wanted(std::string_view path)> wanted = [](std::string_view) {
    return Wanted::kContents;
  };
};

// Writes the groups, datasets and attributes of `file`. Refuses links other than hard ones, objects
// that are in the file twice, data in other files, types other than numbers and texts, names and
// texts that are not UTF-8 or have control characters; the reason is then the last record.
void dump_tree(hid_t file, const DumpRequest& request, const SandboxWrite& write);

// The same in this process, of a file that it writes itself, with what HDF5 holds back in memory.
// Throws: hdf5::Error.
StoredNode own_tree(hid_t file, const DumpRequest& request);

}  // namespace lockstep

// Makes capture files for tests. A tree of groups, datasets and attributes
// (src/record/hdf5/stored_tree.h) is made for a graph, optionally damaged by the test, and
// written. Nothing is trained here: PyTorch's results are made up, so the gates of `lockstep
// verify` fail on such captures; they must fail in an orderly way.
#pragma once

#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/record/hdf5/stored_tree.h"

namespace lockstep::testing {

StoredValue text_value(const std::string& text);
StoredValue number_value(double value);                            // a scalar kF64
StoredValue integer_value(StoredValue::Kind kind, int64_t value);  // a scalar kU8, kI32 or kI64
StoredValue json_value(const std::string& text);                   // a row of kU8

// Two steps of this graph; the second is a verify step.
StoredNode capture_of(const Graph& graph);

// HDF5 data after a user block of 512 bytes. `newest`: in the newest form that HDF5 writes,
// otherwise in the oldest, which h5py writes. Not sealed.
void write_tree(const std::string& path, const StoredNode& tree, bool newest);
// Writes length and SHA-256 of the HDF5 data into the block before them.
void seal_capture(const std::string& path);

inline constexpr size_t kBlockBytes = 512;

}  // namespace lockstep::testing

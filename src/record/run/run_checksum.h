// Checksums of what a run file holds, so that damage is noticed: of every row of a lane's datasets,
// and of the run's description. Each is the exclusive or of the XXH3 hashes of its parts, so their
// order does not matter. They protect against chance, not against an enemy. HDF5's own filter
// (Fletcher-32) would accept a chunk of zeros with a checksum of zero, and does not see metadata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "src/record/hdf5/stored_tree.h"
#include "src/record/run/quantities.h"

namespace lockstep {

// A part of a row's checksum: the bytes that the dataset `name` (its path below the lane's group)
// has in row `row`.
uint64_t row_checksum(std::string_view name, int64_t row, const void* bytes, size_t count);
// A part of a step's: whether the lane had died, and of what.
uint64_t death_checksum(int64_t step, bool has_died, DeathCause died_of);

// The dataset that holds the checksums of such a quantity's rows; nothing for checksums themselves.
std::optional<Gathered> checksums_of(const Quantity& quantity);

// The checksum of everything in a run's group, except the rows of its lanes and the attributes that
// change while it is recorded. `run` is as the reader gets it, before anything was taken from it.
uint64_t description_checksum(const StoredNode& run);

}  // namespace lockstep

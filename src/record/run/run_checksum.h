// Checksums of what a run file holds, so that every reader notices damage in what it reads: XXH3
// hashes of every row of a lane's datasets, of the number of complete steps, and of the run's
// description. They protect against chance, not against an enemy. HDF5's own filter (Fletcher-32)
// would accept a chunk of zeros with a checksum of zero, and does not see metadata.
// The checksums of rows of one kind (of steps, of evaluations) are a dataset with a row for each of
// them, which has a number for each dataset of that kind, sorted by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/record/hdf5/stored_tree.h"
#include "src/record/run/quantities.h"

namespace lockstep {

// Of the bytes that the dataset `name` (its path below the lane's group) has in row `row`.
uint64_t row_checksum(std::string_view name, int64_t row, const void* bytes, size_t count);
// Of a step: whether the lane had died, and of what. The first number of a step's row.
uint64_t death_checksum(int64_t step, bool has_died, DeathCause died_of);

// Of the number of complete steps, as files store it. `is_closed`: the writer ended, so no row is
// half written.
std::string steps_checksum(int64_t steps, bool is_closed);

// The dataset that holds the checksums of such a quantity's rows; nothing for checksums themselves.
std::optional<Gathered> checksums_of(const Quantity& quantity);
// How many numbers in a row of these checksums come before those of the datasets.
size_t first_part(Gathered checksums);

// The checksum of everything in a run's group, except the rows of its lanes and the attributes that
// change while it is recorded; from version 4 on types and widths of these rows are part of it.
// `run` is as the reader gets it, before anything was taken from it. Each value's hash is seeded
// with its path, kind and shape; they are combined by exclusive or.
uint64_t description_checksum(const StoredNode& run);

}  // namespace lockstep

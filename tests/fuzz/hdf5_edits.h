// Changes of an HDF5 file as text, one a line, so that an input stays readable and reproducible
// when the program that makes the file changes:
//   file NAME               first: the seed file (seed_files.h) to change
//   put OFFSET HEX PLACE    bytes of a part of the file
//   xor OFFSET HEX PLACE    the same, exclusive or
//   cut SHARE               truncated at this share of the file, in 1/65536
//   zero SHARE LENGTH       a block of zeros
//   text PLACE=TEXT         another text in a dataset, attribute or row of a column; \xHH for bytes
//   drop PLACE              an object or attribute removed
//   move PLACE=PLACE        an object under another name
//   tree|graph|hdf5 NUMBER  of captures: the damage of tests/record/capture/damage.h
//   raw                     checksums are not repaired
// hdf5_places.h finds the places: "/lanes/fp32/loss message 8 0", "/lanes btree 0",
// "/sites/layer#3", "/@options".
#pragma once

#include <string>
#include <vector>

#include "tests/record/capture/damage.h"  // Dice

namespace lockstep::fuzz {

// Writes the file that the first line names, changed, to `path`. Lines that do not apply to it (no
// such place) change nothing.
void write_edited(const std::string& edits, const std::string& path);
// Adds, changes or removes a line. `others`: inputs to take lines from.
std::string change_edits(const std::string& edits, const std::vector<std::string>& others,
                         testing::Dice& dice);
}  // namespace lockstep::fuzz

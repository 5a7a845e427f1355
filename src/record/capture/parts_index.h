// A folder that lockstep_capture.Parts wrote: a folder for each rank, with the list parts.json and
// a capture for each part and step. docs/parts.md
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct PartEntry {
  std::string module, file;  // the path of its capture; "": refused
  std::string why;           // it was refused
  int64_t step = 0, rank = 0;
};

struct PartsIndex {
  std::string folder;  // without a slash at its end: results for all parts are named after it
  std::string model_class;
  int64_t world_size = 1;
  std::vector<int64_t> ranks;       // whose folders are here
  std::vector<int64_t> incomplete;  // of these: the loop ended before the last step to capture
  // By step, then in the order of rank 0's calls, then by rank: those of one part stand together.
  std::vector<PartEntry> entries;
};

// Whether the path is a folder with the lists of ranks in it, or the folder of one rank.
bool is_parts_folder(const std::string& path);
// A hash of all captures, 16 hexadecimal digits; it ties results to the folder as it was. Cost:
// reads every file. Throws: InputError.
std::string parts_hash(const PartsIndex& index);
// That of a folder of parts, or the SHA-256 of a capture: RunOptions::capture_hash. Likewise.
std::string hash_of_captured(const std::string& path);
// Throws: InputError with all problems: no list, a damaged one, lists of different runs, a capture
// that is not there.
PartsIndex read_parts_index(const std::string& folder);

}  // namespace lockstep

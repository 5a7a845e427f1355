// What is fuzzed: one row per reader of files or text from outside (targets.cc). Plain data; knows
// nothing of campaigns.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fuzz {

// How inputs of a target are mutated (mutate.h).
enum class Grammar {
  kWords,  // names, numbers, options: short texts with separators
  kToml,
  kJson,
  kLines,  // CSV and plain text
  kBytes,  // binary files
  kEdits,  // changes of an HDF5 file, one a line (hdf5_edits.h)
};

// A worker's private folder.
struct Place {
  std::string folder;
  std::string file(std::string_view name) const { return folder + "/" + std::string(name); }
};

// An input for which the target did what it must not do, without an exception of its own.
struct Finding : std::logic_error {
  using std::logic_error::logic_error;
};

struct Target {
  std::string_view name;
  std::string_view reads;  // in words, for the table
  Grammar grammar;
  // The share of a campaign's inputs: cheap readers get more than those that read whole runs.
  int weight;
  std::vector<std::string> (*seeds)();
  // Returns: the input was accepted. Throws: InputError or WriteError: refused. Anything else is a
  // finding.
  void (*run)(std::string_view input, const Place& place);
};

std::span<const Target> targets();
// The folder of files made once for all inputs (seed_files.h): set before the first seeds are asked
// for.
std::string& seed_folder();
inline std::string seed_file(std::string_view name) {
  return seed_folder() + "/" + std::string(name);
}
const Target& find_target(std::string_view name);  // Throws: InputError with a did-you-mean

}  // namespace lockstep::fuzz

// The files of one command line, so that no output replaces an input or another output. Files are
// compared by identity (device and inode), which finds links and other spellings of a name.
#pragma once

#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/train/run_options.h"

namespace lockstep {

// The folder of -o. Throws: InputError if it cannot be made.
void make_output_folder(const std::string& path);

struct CommandInput {
  std::string what, path;  // "--rules", "rules.toml"
};

class CommandFiles {
 public:
  // `what` names it in messages: "--rules", "RUN". Empty paths are left out. Of a folder, every
  // file in it may be read.
  void input(const std::string& what, const std::string& path);
  // The capture, data, policies and start of the runs that the options describe.
  void inputs_of(const RunOptions& options);
  void output(const std::string& what, const std::string& path);
  // A run file, with its checkpoints, snapshot and temporary files.
  void run_output(const std::string& what, const std::string& path);

  // Adds a problem for every output that is an input, or the same file as another output.
  void check(ProblemList& problems) const;

 private:
  struct Named {
    std::string what, path, given;  // `given`: the path in the command line
  };
  void check_inputs(const Named& output, ProblemList& problems) const;

  std::vector<Named> inputs_, outputs_;
};

}  // namespace lockstep

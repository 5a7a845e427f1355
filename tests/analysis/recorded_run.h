// Small recorded runs for the tests of analysis: a real run of a small model, whose description and
// steps a test may change before they are written.
#pragma once

#include <functional>
#include <string>

#include "src/record/run/run_reader.h"
#include "src/train/lockstep.h"

namespace lockstep::testing {

// A folder of its own under the system's temporary folder, removed with everything in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The writer's input before the first step; `run` points to the copies.
struct Described {
  RunDescription run;
  Graph graph;
  SiteTable sites;
  RunOptions options;
};
// Changes to the writer's input.
struct Tampering {
  std::function<void(Described&)> description = {};
  std::function<void(StepRecord&)> step = {};
};

// mlp on 100 synthetic images, 3 steps of 8: fp32, torch-autocast-fp16, pure-fp16.
RunOptions small_run();
RunFile record(const std::string& path, const RunOptions& options, Tampering tampering = {});

// A site with something measured in lane 1, away from either end.
size_t some_site(const RunFile& run);

}  // namespace lockstep::testing

// What a live view shows of a run being written: the snapshot that `replay` keeps next to the run
// file (docs/run-file.md), and whether the replay still runs. Knows nothing of HTTP.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

enum class LiveState : uint8_t { kWaiting, kRunning, kStopped, kFinished };
std::string_view to_string(LiveState state);

struct LiveNews {
  LiveState state = LiveState::kWaiting;  // waiting: no snapshot yet
  std::string sentence;                   // "The run stopped at step 12 of 400."
  std::string json;  // run, state, sentence, commands, snapshot (null: there is none)
};
class LiveView {
 public:
  explicit LiveView(std::string run_path) : path_(std::move(run_path)) {}
  const std::string& path() const { return path_; }
  // May be called from several threads.
  LiveNews news();

 private:
  int64_t recorded_steps(const std::string& snapshot);

  std::string path_;
  std::mutex mutex_;
  // After a kill the run file holds steps that the snapshot does not count. It is read once for
  // each snapshot, when no program writes it any more.
  std::string counted_;  // the snapshot
  int64_t steps_ = 0;
};

// The page's own files: "live.html", "live.css", "live.js".
std::string_view live_file(std::string_view name);

}  // namespace lockstep

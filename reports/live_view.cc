// The state of a run in words.
#include "reports/live_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "reports/number_text.h"
#include "src/core/error.h"
#include "src/core/process.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/run/run_file.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

struct LiveFile {
  std::string_view name, text;
};
constexpr LiveFile kLiveFiles[] = {
#include "embedded_live.inc"
};

// Empty: there is none.
std::string read_snapshot(const std::string& path) {
  try {
    return read_text_file(path);
  } catch (const InputError&) {
    return "";
  }
}

bool has_ended(const ordered_json& snapshot) {
  if (!snapshot.contains("process")) return false;
  const ordered_json& process = snapshot["process"];
  return is_running({.id = process.value("id", int64_t{0}),
                     .started = process.value("started", int64_t{0}),
                     .host = process.value("host", "")}) == Running::kNo;
}

LiveState state_of(const ordered_json& snapshot) {
  const std::string written = snapshot.value("state", "");
  if (written == "finished") return LiveState::kFinished;
  if (written == "stopped" || has_ended(snapshot)) return LiveState::kStopped;
  return LiveState::kRunning;
}

// `stopped_at`: of a run that stopped.
std::string sentence_of(LiveState state, const ordered_json& snapshot, int64_t stopped_at) {
  const auto steps = snapshot.value("steps", int64_t{0});
  const auto done = snapshot.value("steps_done", int64_t{0});
  const std::string seed = snapshot.contains("seeds")
                               ? fmt::format(" of seed {} of {}", snapshot.value("seed_number", 1),
                                             snapshot.value("seeds", 1))
                               : "";
  switch (state) {
    case LiveState::kFinished:
      return fmt::format("The run has finished: {}{}.",
                         counted(static_cast<uint64_t>(steps), "step"), seed);
    case LiveState::kStopped:
      return fmt::format("The run stopped at step {} of {}{}.", stopped_at, steps, seed);
    case LiveState::kRunning:
      return fmt::format(
          "Running: {} of {}{} done{}.", done, counted(static_cast<uint64_t>(steps), "step"), seed,
          snapshot.contains("seconds_left")
              ? ", about " + seconds_text(snapshot.value("seconds_left", 0.0)) + " left"
              : "");
    case LiveState::kWaiting:
      break;
  }
  return "The run has not begun: there is no snapshot of it yet.";
}

ordered_json commands_of(const std::string& path, LiveState state) {
  ordered_json commands = ordered_json::array();
  const std::string name = shell_quoted(path);
  if (state == LiveState::kStopped) {
    commands.push_back(
        {{"purpose", "To continue it:"}, {"command", "lockstep replay --resume " + name}});
  }
  if (state == LiveState::kStopped || state == LiveState::kFinished) {
    const std::string page = std::filesystem::path(path).stem().string() + ".html";
    commands.push_back({{"purpose", "The full report:"},
                        {"command", "lockstep report " + name + " -o " + shell_quoted(page)}});
  }
  return commands;
}

}  // namespace

std::string_view to_string(LiveState state) {
  switch (state) {
    case LiveState::kRunning:
      return "running";
    case LiveState::kStopped:
      return "stopped";
    case LiveState::kFinished:
      return "finished";
    case LiveState::kWaiting:
      break;
  }
  return "waiting";
}

int64_t LiveView::recorded_steps(const std::string& snapshot) {
  if (counted_ == snapshot) return steps_;
  counted_ = snapshot;
  steps_ = 0;
  try {
    const uint64_t seed = RunFile(path_, /*allow_empty=*/true).seeds().back();  // the one that ran
    steps_ = RunFile(path_, true, seed).steps();
  } catch (const InputError&) {
    // Gone, or another replay writes it already: the snapshot's number stands.
  }
  return steps_;
}

LiveNews LiveView::news() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string text = read_snapshot(path_ + ".progress.json");
  const ordered_json snapshot = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  LiveNews news;
  int64_t stopped_at = 0;
  if (snapshot.is_object()) {
    news.state = state_of(snapshot);
    stopped_at = snapshot.value("steps_done", int64_t{0});
  }
  if (news.state == LiveState::kStopped) stopped_at = std::max(stopped_at, recorded_steps(text));
  news.sentence =
      sentence_of(news.state, snapshot.is_object() ? snapshot : ordered_json::object(), stopped_at);
  const ordered_json json = {{"run", path_},
                             {"state", to_string(news.state)},
                             {"sentence", news.sentence},
                             {"commands", commands_of(path_, news.state)},
                             {"snapshot", snapshot.is_object() ? snapshot : ordered_json(nullptr)}};
  news.json = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return news;
}

std::string_view live_file(std::string_view name) {
  return std::ranges::find(kLiveFiles, name, &LiveFile::name)->text;
}

}  // namespace lockstep

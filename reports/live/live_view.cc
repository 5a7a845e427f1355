// The state of a run in words.
#include "reports/live/live_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "reports/writers/number_text.h"
#include "src/core/error.h"
#include "src/core/process.h"
#include "src/core/sealed_text.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/graph/json_text.h"
#include "src/record/run/run_reader.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

struct LiveFile {
  std::string_view name, text;
};
constexpr LiveFile kLiveFiles[] = {
#include "embedded_live.inc"
};

// Nothing: there is no such file. Empty: it cannot be read.
std::optional<std::string> read_snapshot(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  try {
    constexpr size_t kMostBytes = size_t{1} << 20;  // a snapshot has some kilobytes
    return read_text_file(path, kMostBytes);
  } catch (const InputError&) {
    return "";
  }
}

// Are the values that this file reads of their types? Another program may have written the file.
bool is_snapshot(const ordered_json& json) {
  if (!json.is_object()) return false;
  const auto is_count = [&](const char* key) {
    return json.value(key, ordered_json(0U)).is_number_unsigned();
  };
  const ordered_json process = json.value("process", ordered_json::object());
  const ordered_json left = json.value("seconds_left", ordered_json(nullptr));
  return json.value("state", ordered_json("")).is_string() &&
         (is_count("steps") || !json.contains("steps")) && is_count("steps_done") &&
         is_count("seed_number") && is_count("seeds") && (left.is_null() || left.is_number()) &&
         process.is_object() && process.value("id", ordered_json(0)).is_number_integer() &&
         process.value("started", ordered_json(0)).is_number_integer() &&
         process.value("host", ordered_json("")).is_string();
}

// Null: it is none.
ordered_json snapshot_of(const std::string& text) {
  if (seal_of(text) == Seal::kBroken) return nullptr;
  try {
    require_bounded_json(text);
  } catch (const InputError&) {
    return nullptr;
  }
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return is_snapshot(json) ? json : ordered_json(nullptr);
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
  const auto done = snapshot.value("steps_done", int64_t{0});
  const bool knows_steps = snapshot.contains("steps");  // a monitor does not
  const auto steps = snapshot.value("steps", done);
  const std::string seed = snapshot.contains("seeds")
                               ? fmt::format(" of seed {} of {}", snapshot.value("seed_number", 1),
                                             snapshot.value("seeds", 1))
                               : "";
  switch (state) {
    case LiveState::kFinished:
      return fmt::format("The run has finished: {}{}.",
                         counted(static_cast<uint64_t>(steps), "step"), seed);
    case LiveState::kStopped:
      if (!knows_steps) return fmt::format("The run stopped at step {}.", stopped_at);
      return fmt::format("The run stopped at step {} of {}{}.", stopped_at, steps, seed);
    case LiveState::kRunning:
      if (!knows_steps) {
        return fmt::format("Running: {} done.", counted(static_cast<uint64_t>(done), "step"));
      }
      return fmt::format(
          "Running: {} of {}{} done{}.", done, counted(static_cast<uint64_t>(steps), "step"), seed,
          snapshot.contains("seconds_left") && snapshot["seconds_left"].is_number()
              ? ", about " + seconds_text(snapshot.value("seconds_left", 0.0)) + " left"
              : "");
    case LiveState::kWaiting:
      break;
  }
  return "";  // sentence_without()
}

// The sentence for a run without a snapshot, or with a file that is none.
std::string sentence_without(const std::string& path, const std::optional<std::string>& file) {
  if (file) {
    return fmt::format("The snapshot next to the run is damaged: {}.",
                       seal_of(*file) == Seal::kBroken ? "its checksum does not fit"
                                                       : "it is not as `replay` writes it");
  }
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    try {
      const RunFile run = RunFile::of_any_run(path, /*allow_empty=*/true);
      const auto recorded = static_cast<uint64_t>(run.steps());
      const auto planned = static_cast<uint64_t>(run.options().steps);
      return fmt::format("{} recorded; no snapshot next to it.",
                         run.is_live()
                             ? counted(recorded, "step")
                             : fmt::format("{} of {}", recorded, counted(planned, "step")));
    } catch (const InputError&) {
      // Its replay may be creating it.
    }
  }
  return "The run has not begun: there is no snapshot of it yet.";
}

ordered_json commands_of(const std::string& path, LiveState state) {
  ordered_json commands = ordered_json::array();
  const std::string name = shell_path(path);
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
    // The seed that ran.
    const uint64_t seed = RunFile::of_any_run(path_, /*allow_empty=*/true).seeds().back();
    steps_ = RunFile::of_any_run(path_, true, seed).steps();
  } catch (const InputError&) {
    // Gone, or another replay writes it already: the snapshot's number stands.
  }
  return steps_;
}

LiveNews LiveView::news() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<std::string> file = read_snapshot(path_ + ".progress.json");
  const std::string text = file.value_or("");
  const ordered_json snapshot = snapshot_of(text);
  LiveNews news;
  int64_t stopped_at = 0;
  if (!snapshot.is_null()) {
    news.state = state_of(snapshot);
    stopped_at = snapshot.value("steps_done", int64_t{0});
  }
  if (news.state == LiveState::kStopped) stopped_at = std::max(stopped_at, recorded_steps(text));
  news.sentence = snapshot.is_null() ? sentence_without(path_, file)
                                     : sentence_of(news.state, snapshot, stopped_at);
  const ordered_json json = {{"run", path_},
                             {"state", to_string(news.state)},
                             {"sentence", news.sentence},
                             {"commands", commands_of(path_, news.state)},
                             {"snapshot", snapshot}};
  news.json = json.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
  return news;
}

std::string_view live_file(std::string_view name) {
  return std::ranges::find(kLiveFiles, name, &LiveFile::name)->text;
}

}  // namespace lockstep

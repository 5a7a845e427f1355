// Run files, checkpoints and captures: what each command does with a file from a stranger.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "analysis/faithful/gates.h"
#include "src/capture/captured_loop.h"
#include "src/core/error.h"
#include "src/core/text_file.h"
#include "src/policy/find_policy.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "src/record/run/start_from.h"
#include "tests/fuzz/hdf5_edits.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/target_functions.h"

namespace lockstep::fuzz {
namespace {

namespace fs = std::filesystem;

std::string edited(std::string_view input, const Place& place, const std::string& name) {
  const std::string path = place.file(name);
  write_edited(std::string(input), path);
  return path;
}

// What a reader of JSON needs: strict UTF-8 and syntax.
void check_json(const std::string& text) {
  if (!nlohmann::json::accept(text)) throw Finding("the JSON written is none");
}

// Other commands may refuse what one reads: all are tried, and the first refusal is the result.
template <typename... Actions>
void try_all(Actions... actions) {
  std::string refusal;
  const auto attempt = [&](auto& action) {
    try {
      action();
    } catch (const InputError& error) {
      check_text(error.what(), "message");
      if (refusal.empty()) refusal = error.what();
    }
  };
  (attempt(actions), ...);
  if (!refusal.empty()) throw InputError(refusal);
}

}  // namespace

Seeds capture_seeds() {
  return {"file capture-0\n", "file capture-1\n", "file capture-2\n", "file capture-3\n",
          "file capture-4\n"};
}

void use_capture(std::string_view input, const Place& place) {
  const Capture capture = read_capture(edited(input, place, "case.capture"), CaptureUse::kVerify);
  verify_capture(capture);
  make_captured_loop(capture, static_cast<int64_t>(capture.steps.size()));
}

Seeds run_seeds() {
  return {"file run.h5\n", "file many.h5\n"};
}

void report_run(std::string_view input, const Place& place) {
  const std::string path = edited(input, place, "case.h5");
  const auto report = [&](const std::string& format) {
    return run_program({"report", path, "--format", format}, place);
  };
  try_all([&] { report("text"); },
          [&] {
            if (report("html").find("<script>alert") != std::string::npos) {
              throw Finding("markup of the file in the page");
            }
          },
          [&] { check_json(report("json")); });
}

void check_run(std::string_view input, const Place& place) {
  const std::string path = edited(input, place, "case.h5");
  const std::string json = place.file("check.json");
  try_all(
      [&] {
        run_program({"check", path, "--baseline", seed_file("run.h5"), "--exact"}, place);
      },
      [&] {
        run_program({"check", seed_file("run.h5"), "--baseline", path, "--exact"}, place);
      },
      [&] {
        fs::remove(json);
        run_program({"check", path, "--baseline", seed_file("baseline.json"), "--json", json},
                    place);
        check_json(read_text_file(json));
      });
}

void recommend_of_run(std::string_view input, const Place& place) {
  const std::string path = edited(input, place, "case.h5");
  const std::string policy = place.file("policy.toml"), module = place.file("policy.py");
  fs::remove(policy);
  fs::remove(module);
  run_program({"recommend", path, "-o", policy, "--emit", "pytorch", module}, place);
  std::error_code error;
  if (!fs::exists(policy, error)) return;
  try {
    parse_policy(read_text_file(policy), "policy.toml");
  } catch (const InputError& refused) {
    throw Finding(std::string("the policy written is refused: ") + refused.what());
  }
  check_text(read_text_file(module), "the Python module");
}

void resume_run(std::string_view input, const Place& place) {
  const std::string path = edited(input, place, "case.h5");
  for (const char* end : {".state", ".state.1"}) {
    fs::copy_file(seed_file("run.h5") + end, path + end, fs::copy_options::overwrite_existing);
  }
  int64_t from = 0;
  {
    const RunFile run(path, /*allow_empty=*/true);
    const auto state = read_checkpoint(path, run.steps(), run.identity());
    if (state) from = state->steps_done;
  }
  RunFileWriter::resume(path, from);
}

void verify_run(std::string_view input, const Place& place) {
  run_program({"verify", edited(input, place, "case.h5")}, place);
}

Seeds state_seeds() {
  return {"file run.h5.state\n", "file many.h5.state\n"};
}

void read_state_file(std::string_view input, const Place& place) {
  const std::string path = edited(input, place, "start.h5.state");
  fs::remove(path + ".1");
  try_all([&] { start_hash(read_start(path)); },
          [&] { start_hash(read_start(path + ":torch-autocast-fp16")); },
          [&] { read_checkpoint(place.file("start.h5"), INT64_MAX); });
}

}  // namespace lockstep::fuzz

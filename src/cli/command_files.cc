// See command_files.h.
#include "src/cli/command_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "src/cli/arguments/arguments.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/record/run/run_writer.h"
#include "src/record/run/start_from.h"
#include "src/train/lane/lane_name.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// `path` is the file, or one of the files in the folder.
bool is_in(const std::string& path, const std::string& input) {
  if (is_same_file(path, input)) return true;
  std::error_code error;
  if (!fs::is_directory(input, error) || !exists(path)) return false;
  for (fs::directory_iterator at(input, error), end; !error && at != end; at.increment(error)) {
    if (is_same_file(path, at->path().string())) return true;
  }
  return false;
}

}  // namespace

void make_output_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw InputError(fmt::format("-o {}: cannot be made: {}", path, error.message()));
}

void CommandFiles::input(const std::string& what, const std::string& path) {
  if (!path.empty()) inputs_.push_back({what, path, path});
}

void CommandFiles::inputs_of(const RunOptions& options) {
  if (is_capture(options.model)) input("MODEL", options.model);
  const size_t colon = options.data.find(':');
  if (colon != std::string::npos && exists(options.data.substr(colon + 1))) {
    input(std::string(option_name(&RunOptions::data)), options.data.substr(colon + 1));
  }
  for (const std::string& lane : options.lanes) {
    constexpr std::string_view kPolicyFile = ".toml";
    try {
      const std::string policy = parse_lane_name(lane).policy;
      if (policy.ends_with(kPolicyFile))
        input(std::string(option_name(&RunOptions::lanes)), policy);
    } catch (const InputError&) {
      // Another check reports it.
    }
  }
  if (!options.start_from.empty()) {
    try {
      input(std::string(option_name(&RunOptions::start_from)),
            checkpoint_of_start(options.start_from));
    } catch (const InputError&) {
      // Another check reports it.
    }
  }
}

void CommandFiles::output(const std::string& what, const std::string& path) {
  if (!path.empty()) outputs_.push_back({what, path, path});
}

void CommandFiles::run_output(const std::string& what, const std::string& path) {
  if (path.empty()) return;
  output(what, path);
  for (const std::string_view ending : kNextToRun) {
    outputs_.push_back({what, path + std::string(ending), path});
  }
}

void CommandFiles::check_inputs(const Named& output, ProblemList& problems) const {
  const std::string writes =
      output.path == output.given ? "" : fmt::format("it writes {}, which ", output.path);
  for (const Named& input : inputs_) {
    if (!is_in(output.path, input.path)) continue;
    problems.add(fmt::format("{} {}: {}is an input of this command ({} {})", output.what,
                             output.given, writes, input.what, input.given),
                 "name another file");
    return;
  }
}

void CommandFiles::check(ProblemList& problems) const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Named& one = outputs_[i];
    check_inputs(one, problems);
    for (size_t k = 0; k < i; ++k) {
      const Named& other = outputs_[k];
      if (one.given == other.given && one.what == other.what) continue;  // of one run file
      if (!is_same_file(one.path, other.path)) continue;
      problems.add(
          fmt::format("{} {} and {} {}: the same file", other.what, other.path, one.what, one.path),
          "name another file");
    }
  }
}

}  // namespace lockstep

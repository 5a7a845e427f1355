// See check_subject.h.
#include "src/cli/check_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "src/cli/capture_argument.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/run/options_json.h"
#include "src/train/lane_name.h"

namespace lockstep {
namespace {

constexpr std::string_view kHdf5Signature = "\x89HDF\r\n\x1a\n", kCaptureMagic = "LOCKSTEP";

// As many as the signatures have.
std::string first_bytes(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    throw InputError(fmt::format("'{}': no such file, and no built-in model", path),
                     "a run file, a capture, or a name from `lockstep list models`");
  }
  char start[kHdf5Signature.size()] = {};
  const size_t read = std::fread(start, 1, sizeof start, file);
  std::fclose(file);
  return {start, read};
}

}  // namespace

SubjectKind kind_of_subject(const std::string& subject) {
  if (!is_capture(subject)) return SubjectKind::kModel;
  // A capture begins with a block of its own, a run file with HDF5's signature.
  const bool is_hdf5 = first_bytes(subject) == kHdf5Signature;
  return is_hdf5 ? SubjectKind::kRunFile : SubjectKind::kCapture;
}

RunOptions options_for(const Baseline& baseline, const std::string& subject, SubjectKind kind) {
  RunOptions options = options_from_json(baseline.options_json);
  options.model = subject;
  options.capture_hash.clear();
  options.nudge = 0;
  options.seeds = 1;
  options.held_out = false;  // as in the baseline's runs
  options.steps = baseline.steps;
  if (kind == SubjectKind::kCapture) {
    const Capture capture = read_capture(subject, CaptureUse::kReplay);
    options.capture_hash = capture.sha256;
    if (!options.cycle) {
      options.steps = std::min(options.steps, static_cast<int64_t>(capture.steps.size()));
    }
  }
  for (const auto& [lane, text] : baseline.policy_texts) {
    std::error_code error;
    const bool is_there = std::filesystem::exists(parse_lane_name(lane).policy, error);
    if (!is_there) options.policy_texts[lane] = text;
  }
  return options;
}

Baseline read_baseline(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    const std::string start = first_bytes(path);
    const bool is_run = start == kHdf5Signature, is_captured = start == kCaptureMagic;
    if (is_run || is_captured) {
      throw InputError(
          fmt::format("{}: a {}, and no baseline", path, is_run ? "run file" : "capture"),
          "make one with `lockstep baseline record`");
    }
  }
  return baseline_from_json(read_text_file(path), path);
}

std::optional<Baseline> find_baseline(const std::string& folder, const ModelIdentity& run,
                                      std::vector<std::string>& candidates) {
  const auto names = [](const auto& items) {
    std::vector<std::string> all;
    for (const auto& item : items) all.push_back(item.name);
    return all;
  };
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  std::optional<Baseline> found;
  for (const std::string& path : paths) {
    std::optional<Baseline> one;
    try {
      one = read_baseline(path);
    } catch (const InputError&) {
      candidates.push_back(path + ": no baseline");
      continue;
    }
    Baseline& baseline = *one;
    const bool fits = names(baseline.identity.parameters) == names(run.parameters) &&
                      names(baseline.identity.lanes) == names(run.lanes);
    candidates.push_back(fmt::format("{}: lanes {}, {} parameters", path,
                                     join(names(baseline.identity.lanes), ","),
                                     baseline.identity.parameters.size()));
    if (!fits) continue;
    if (found) {
      throw InputError(fmt::format("--baseline {}: {} and {} both fit", folder, found->path, path),
                       "name one of them");
    }
    found = std::move(baseline);
  }
  return found;
}

}  // namespace lockstep

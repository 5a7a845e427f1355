// See check_subject.h.
#include "src/cli/check_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "src/cli/arguments/capture_argument.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/counted.h"
#include "src/core/error.h"
#include "src/core/sealed_text.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/capture/parts_index.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/run/environment.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {
namespace {

std::vector<std::string> json_files(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::error_code broken;
    if (entry.path().extension() != ".json" || !entry.is_regular_file(broken)) continue;
    paths.push_back(entry.path().string());
  }
  if (error) throw InputError(fmt::format("--baseline {}: {}", folder, error.message()));
  std::ranges::sort(paths);
  return paths;
}

std::string candidate_text(const Baseline& baseline) {
  std::vector<std::string> lanes;
  for (const LaneFacts& lane : baseline.run.lanes) lanes.push_back(lane.name);
  return fmt::format("{}: of {}, lanes {}, {}", baseline.path, baseline.run.options.model,
                     join(lanes, ","), counted(baseline.run.parameters.size(), "parameter"));
}

}  // namespace

SubjectKind kind_of_subject(const std::string& subject) {
  if (!is_capture(subject)) return SubjectKind::kModel;
  if (is_parts_folder(subject)) return SubjectKind::kCapture;
  // A capture begins with a block of its own, a run file with HDF5's signature.
  const FileStart start = read_file_start(subject);
  if (start.error == ENOENT) {
    throw InputError(fmt::format("'{}': no such file, and no built-in model", subject),
                     "a run file, a capture, or a name from `lockstep list models`");
  }
  if (start.error != 0) RegularFile file(subject);  // says why it cannot be read
  return start.is_hdf5() ? SubjectKind::kRunFile : SubjectKind::kCapture;
}

RunOptions options_for(const Baseline& baseline, const std::string& subject, SubjectKind kind) {
  RunOptions options = baseline.run.options;
  options.model = subject;
  options.capture_hash.clear();
  options.held_out = false;  // as in the baseline's runs
  options.steps = baseline.run.steps;
  if (is_parts_folder(subject)) {
    options.capture_hash = hash_of_captured(subject);
  } else if (kind == SubjectKind::kCapture) {
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

namespace {

// A baseline of a large network is a megabyte; the parser takes a multiple of the file in memory.
constexpr size_t kMostBaselineBytes = size_t{64} << 20;

// A merge of two baselines in version control is read as well; a person has to know it.
std::string seal_note(const std::string& text, const std::string& path) {
  switch (seal_of(text)) {
    case Seal::kFits:
      break;
    case Seal::kMissing:
      return path + ": an earlier version wrote it, without a checksum: damage would go unnoticed";
    case Seal::kBroken:
      return path +
             ": its checksum does not fit: it was merged or edited by hand, or is damaged; "
             "`lockstep baseline propose` and `approve` write it anew";
  }
  return "";
}

}  // namespace

Baseline read_baseline(const std::string& path, std::string* note) {
  const FileStart start = read_file_start(path);
  const std::string_view noun = start.is_hdf5()                         ? "run file"
                                : start.bytes == kCaptureBlock.magic    ? kCaptureBlock.noun
                                : start.bytes == kCheckpointBlock.magic ? kCheckpointBlock.noun
                                                                        : "";
  if (!noun.empty()) {
    throw InputError(fmt::format("{}: a {}, and no baseline", path, noun),
                     "make one with `lockstep baseline record`");
  }
  const std::string text = read_text_file(path, kMostBaselineBytes);
  Baseline baseline = baseline_from_json(text, path);
  const std::string about = seal_note(text, path);
  if (note != nullptr) {
    *note = about;
  } else if (!about.empty()) {
    print_note("note: " + about);
  }
  return baseline;
}

CheckedModel checked_model_of(const std::string& subject, SubjectKind kind) {
  if (kind == SubjectKind::kRunFile) return {facts_without_twins(RunFile(subject)), true};
  CheckedModel model;
  model.run.options.model = subject;
  model.run.environment = describe_environment();
  if (kind == SubjectKind::kModel) return model;
  if (is_parts_folder(subject)) {
    throw InputError(
        fmt::format("'{}': a folder of parts, and several baselines to choose from", subject),
        "name the file of its baseline");
  }
  const Capture capture = read_capture(subject, CaptureUse::kReplay);
  model.run.options.capture_hash = capture.sha256;
  model.run.parameters = parameter_facts(capture.graphs.at(0));
  return model;
}

namespace {

// Other JSON may be in the folder; a baseline that cannot be read must not be passed over.
bool is_meant_as_baseline(const std::string& path) {
  return path.ends_with(".baseline.json") ||
         read_text_file(path, kMostBaselineBytes).find(kBaselineFormat) != std::string::npos;
}

}  // namespace

FoundBaseline find_baseline(const std::string& folder, const CheckedModel& subject) {
  FoundBaseline found;
  BaselineFit best;
  std::string other;  // the last that fits as well
  std::string note, best_note;
  for (const std::string& path : json_files(folder)) {
    std::optional<Baseline> one;
    try {
      one = read_baseline(path, &note);
    } catch (const InputError& error) {
      if (is_meant_as_baseline(path)) throw;
      found.candidates.push_back(join(error.lines(), "; "));
      continue;
    }
    found.candidates.push_back(candidate_text(*one));
    const BaselineFit fit = fit_of(*one, subject);
    if (!fit.is_comparable || (found.baseline && best.rank() < fit.rank())) continue;
    const bool is_equal = found.baseline && fit.rank() == best.rank();
    other = is_equal ? path : "";
    if (is_equal) continue;
    best = fit;
    best_note = note;
    found.baseline = std::move(one);
  }
  if (!other.empty()) {
    throw InputError(fmt::format("--baseline {}: {} and {} fit equally well", folder,
                                 found.baseline->path, other),
                     "name one of them");
  }
  if (found.baseline) {
    const std::string name = std::filesystem::path(found.baseline->path).filename().string();
    found.note = fit_note(best, folder, name);
    if (!best_note.empty()) found.note += (found.note.empty() ? "" : ". ") + best_note;
  }
  return found;
}

}  // namespace lockstep

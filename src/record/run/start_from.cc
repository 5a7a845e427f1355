// Weights from a checkpoint of another run. Knows nothing of how that run was trained: optimizer
// states and loss scale are not used.
#include <fmt/format.h>

#include <filesystem>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/run_file_names.h"
#include "src/record/run/start_from.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {
namespace {

struct StartName {
  std::string path, lane;
};

// The lane follows the last ".state:" or ".state.1:"; paths and lanes may have colons too.
StartName parse_start(std::string_view text) {
  for (const std::string_view end : {".state.1", ".state"}) {
    if (text.ends_with(end)) return {std::string(text), std::string(kReferenceLane)};
    const size_t at = text.rfind(std::string(end) + ":");
    if (at == std::string_view::npos) continue;
    const size_t colon = at + end.size();
    return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
  }
  throw InputError(fmt::format("start-from '{}': RUN.state[:LANE] required", text),
                   "give a checkpoint of a run file, e.g. run.h5.state:fp32");
}

}  // namespace

std::map<std::string, Tensor> read_start(std::string_view text) {
  const StartName name = parse_start(text);
  const Checkpoint checkpoint = read_checkpoint_file(name.path);
  const auto& lanes = checkpoint.record.lane_names;
  const LaneState* found = nullptr;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i] == name.lane) found = &checkpoint.run.lanes.at(i);
  }
  if (found == nullptr) {
    throw InputError(fmt::format("start-from '{}': no lane '{}'", text, name.lane),
                     did_you_mean(name.lane, lanes));
  }
  std::map<std::string, Tensor> start;
  // In this order: masters replace the weights rounded from them.
  for (const std::string_view kind : {"buffer/", "weight/", "master/"}) {
    for (const auto& [key, tensor] : found->tensors) {
      if (!key.starts_with(kind)) continue;
      const bool is_int = tensor.container() == Container::kI32;
      start[key.substr(kind.size())] = is_int ? tensor : tensor.to(Container::kF32);
    }
  }
  return start;
}

std::string start_hash(const std::map<std::string, Tensor>& start) {
  std::string text;
  for (const auto& [name, tensor] : start) {
    text += name + to_string(tensor.shape());
    text.append(static_cast<const char*>(tensor.raw()), tensor.bytes());
  }
  return run_names::hex(fnv1a(text));
}

std::string checkpoint_of_start(std::string_view text) {
  return parse_start(text).path;
}

bool starts_from_run(std::string_view text, const std::string& run_path) {
  const auto whole = [](const std::string& path) {
    std::error_code ignored;  // an unresolvable path is compared as written
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path), ignored);
  };
  const auto start = whole(parse_start(text).path);
  return start == whole(run_path + ".state") || start == whole(run_path + ".state.1");
}

}  // namespace lockstep

// Weights from a checkpoint of another run. Knows nothing of how that run was trained: optimizer
// states and loss scale stay behind.
#include <fmt/format.h>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/checkpoint.h"
#include "src/record/run_file.h"
#include "src/train/lane.h"

namespace lockstep {
namespace {

struct StartName {
  std::string path, lane;
};

// The lane stands behind the last ".state:" or ".state.1:"; paths and lanes may have colons, too.
StartName parse_start(std::string_view text) {
  for (const std::string_view end : {".state.1", ".state"}) {
    if (text.ends_with(end)) return {std::string(text), std::string(kReferenceLane)};
    const size_t at = text.rfind(std::string(end) + ":");
    if (at == std::string_view::npos) continue;
    const size_t colon = at + end.size();
    return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
  }
  throw InputError(fmt::format("start-from '{}': RUN.state[:LANE] required", text),
                   "a checkpoint beside a run file, e.g. run.h5.state:fp32");
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
      if (key.starts_with(kind)) start[key.substr(kind.size())] = tensor.to(Container::kF32);
    }
  }
  return start;
}

}  // namespace lockstep

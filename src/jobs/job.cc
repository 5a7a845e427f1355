#include "src/jobs/job.h"

#include <fmt/format.h>

#include <utility>

#include "src/core/text_hash.h"
#include "src/record/run/environment.h"
#include "src/record/run/options_json.h"
#include "src/record/run/run_reader.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {

Job make_job(std::string label, RunOptions options) {
  RunOptions counted = options;
  counted.model.clear();
  std::string text = fmt::format("{} {} ", LOCKSTEP_VERSION, kRunFormatVersion);
  // Some lanes run on this machine's units.
  for (const auto& [name, value] : describe_environment()) text += name + "=" + value + " ";
  text += options_to_json(counted);
  for (const std::string& lane : options.lanes) {
    text += fmt::format(" {} {:016x}", lane, describe_lane(lane).policy.hash());
  }
  return {std::move(label), std::move(options), fmt::format("{:016x}", fnv1a(text))};
}

}  // namespace lockstep

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
  counted.policy_texts.clear();  // of its lanes they are counted below
  std::string text = fmt::format("{} {} ", LOCKSTEP_VERSION, kRunFormatVersion);
  // Some lanes run on this machine's units.
  for (const auto& [name, value] : describe_environment()) text += name + "=" + value + " ";
  text += options_to_json(counted);
  for (const std::string& lane : options.lanes) {
    const auto recorded = options.policy_texts.find(lane);
    const std::string* policy =
        recorded == options.policy_texts.end() ? nullptr : &recorded->second;
    text += fmt::format(" {} {:016x}", lane, describe_lane(lane, policy).policy.hash());
  }
  return {std::move(label), std::move(options), fmt::format("{:016x}", fnv1a(text))};
}

}  // namespace lockstep

// See fix_lane.h.
#include "analysis/fix/fix_lane.h"

#include <fmt/format.h>

#include "src/core/error.h"
#include "src/policy/find_policy.h"
#include "src/policy/parse/toml_text.h"
#include "src/policy/twin_lane.h"
#include "src/train/lane/captured_lane.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {
namespace {

// [loss_scale] as the preset has it in a replay of this capture; "": as it stands.
std::string captured_scale(const Policy& policy, const Capture& capture) {
  if (policy.loss_scale.kind != kGradScaler) return "";
  if (lacks_scaler(capture)) return "\n[loss_scale]\nkind = \"none\"\n";
  const CapturedScaler& scaler = capture.scaler;
  if (!scaler.enabled || scaler.spec.kind != policy.loss_scale.kind) return "";
  return "\n" + toml_text(toml::table{
                    {"loss_scale", toml::table{{"init_scale", scaler.start.scale},
                                               {"growth_factor", scaler.spec.growth_factor},
                                               {"backoff_factor", scaler.spec.backoff_factor},
                                               {"growth_interval", scaler.spec.growth_interval}}}});
}

}  // namespace

FixLane fix_lane(const std::string& name, const RunOptions& options, const Capture* capture) {
  if (name == kReferenceLane || name == kTruthLane || twin_number(name) > 0 ||
      name == kCapturedLane) {
    throw InputError(fmt::format("--fix {}: this lane has no policy to change", name),
                     "name a preset or a policy file that goes wrong");
  }
  const LaneName parts = parse_lane_name(name);
  const auto text = options.policy_texts.find(name);
  const Policy policy = text != options.policy_texts.end()
                            ? parse_recorded_policy(text->second, parts.policy)
                            : find_policy(parts.policy);
  if (parts.policy.ends_with(".toml")) return {name, policy.text, parts.target};
  std::string toml = toml_text(toml::table{{"extends", policy.label()}});
  if (capture != nullptr) toml += captured_scale(policy, *capture);
  return {name, toml, parts.target};
}

}  // namespace lockstep

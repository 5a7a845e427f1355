// Every preset as a lane: two steps of lenet, or of gpt where a rule names blocks. State between
// steps is in the preset's formats, batch norms kept in FP32 included; no preset is without effect.
#include <algorithm>
#include <map>
#include <utility>

#include "emulation/format/rounding.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/quantize.h"
#include "src/policy/find_policy.h"
#include "src/policy/policy.h"
#include "tests/train/small_runs.h"

namespace lockstep {
namespace {

bool is_in(const Tensor& tensor, const Format& format) {
  Tensor rounded(tensor.shape(), Container::kF32);
  quantize<float>(active_kernels(), tensor.as<float>(), rounded.as<float>(), {&format}, nullptr);
  return rounded.same_bits(tensor);
}

// Lenet has no numbered modules.
bool names_blocks(const Policy& policy) {
  return std::ranges::any_of(policy.rules, [](const PolicyRule& rule) {
    return rule.place && rule.place->part == PlacePart::kBlocks;
  });
}

// "fp32", then the presets that run on lenet, or on gpt alone with what they extend.
std::vector<std::string> preset_lanes(bool on_gpt) {
  std::vector<std::string> lanes = {"fp32"};
  const auto add = [&](const std::string& lane) {
    if (std::ranges::count(lanes, lane) == 0) lanes.push_back(lane);
  };
  for (const Policy& preset : presets()) {
    if (preset.name == "fp32" || names_blocks(preset) != on_gpt) continue;
    add(preset.label());
    if (on_gpt) add(preset.extends);
  }
  return lanes;
}

RunOptions preset_run(bool on_gpt) {
  RunOptions options = small_run(preset_lanes(on_gpt), 2);
  options.model = on_gpt ? "gpt" : "lenet";
  if (on_gpt) {
    options.data = "grammar";
    options.sizes = {{"layers", 3}, {"width", 32}, {"heads", 2}, {"context", 16}};
  }
  options.batch = 16;  // Hadamard transforms run on groups of 16 rows
  return options;
}

TEST_CASE("presets: every one trains, and keeps its weights in its formats") {
  const std::vector<std::string> lanes = preset_lanes(/*on_gpt=*/false);
  Recorder recorder;
  const RunState end = run(preset_run(/*on_gpt=*/false), recorder);
  REQUIRE(end.lanes.size() == lanes.size());
  const Format &fp32 = find_format("fp32"), &fp16 = find_format("fp16");
  for (size_t i = 0; i < lanes.size(); ++i) {
    CAPTURE(lanes[i]);
    const Policy policy = find_policy(lanes[i]);
    const bool keeps_norms = !policy.keep_fp32.empty();
    for (const StepRecord& step : recorder.steps) CHECK(std::isfinite(step.lanes[i].loss));
    const auto& tensors = end.lanes[i].tensors;
    for (const auto& [name, tensor] : tensors) {
      if (!name.starts_with("weight/")) continue;
      CAPTURE(name);
      const bool is_kept = keeps_norms && name.starts_with("weight/bn");
      CHECK(is_in(tensor, is_kept ? fp32 : *policy.weight));
      // A dynamic loss scale may skip both steps.
      const bool moves = is_kept && policy.loss_scale.kind == "none";
      if (moves && name.ends_with("weight")) CHECK_FALSE(is_in(tensor, fp16));
    }
    CHECK(tensors.contains("master/conv1.weight") == policy.master_weights);
    CHECK(tensors.contains("master/bn1.weight") == (policy.master_weights && !keeps_norms));
    CHECK(tensors.contains("kahan/conv1.weight") ==
          (policy.update_rounding == UpdateRounding::kKahan));
    CHECK(is_in(tensors.at("buffer/bn1.running_var"), keeps_norms ? fp32 : *policy.buffer));
  }
  const auto at = [&](const char* lane) -> const auto& {
    const auto found = std::find(lanes.begin(), lanes.end(), lane);
    return end.lanes[static_cast<size_t>(found - lanes.begin())].tensors;
  };
  CHECK_FALSE(is_in(at("apex-o2:1").at("buffer/bn1.running_var"), fp16));
  CHECK(is_in(at("apex-o3:1").at("buffer/bn1.running_var"), fp16));
  // apex O3 gives the loss FP32 operands, half does not.
  const auto first_loss = [&](const char* lane) {
    const auto found = std::find(lanes.begin(), lanes.end(), lane);
    return recorder.steps[0].lanes[static_cast<size_t>(found - lanes.begin())].loss;
  };
  const double wide = first_loss("apex-o3:1"), narrow = first_loss("half:1");
  CHECK(wide != narrow);
  CHECK(round_to_format(wide, fp16, Rounding::kNearestEven) == narrow);
}

// Presets that equal another one bit for bit on lenet, and why.
const std::map<std::string, std::pair<std::string, std::string>> kSameOnLenet = {
    {"apex-o0:1", {"fp32", "O0 is FP32 training"}},
    {"as-captured-bf16:1", {"pure-bf16:1", "a built-in model names no formats"}},
    {"as-captured-fp16:1", {"half:1", "a built-in model names no formats"}},
    {"fsdp2-bf16-param-reduce:2.14", {"fsdp2-bf16:1", "one worker and micro-batch: no sum"}},
    {"fsdp2-bf16-param-reduce:2.15", {"fsdp2-bf16:1", "as reduce_dtype=float32"}},
    {"fp8-tensorwise:1", {"fp8-current:1", "the least amax of torchao is below every tensor's"}},
    {"torch-autocast-fp16:2.12", {"torch-autocast-fp16:2.11", "2.12 moved rms_norm alone"}},
    {"torch-autocast-bf16:2.12", {"torch-autocast-bf16:2.11", "2.12 moved rms_norm alone"}},
};

// A lane's records over a run: the hash of every site, step by step, and its last tensors.
struct Recorded {
  std::vector<uint64_t> hashes;
  std::vector<double> losses;
  std::map<std::string, Tensor> tensors;

  bool same_bits(const Recorded& other) const {
    // A site that only one of the two lanes has differs too: the other lane has no hash for it.
    if (hashes != other.hashes || losses != other.losses) return false;
    if (tensors.size() != other.tensors.size()) return false;
    return std::ranges::all_of(tensors, [&](const auto& item) {
      const auto found = other.tensors.find(item.first);
      return found != other.tensors.end() && item.second.same_bits(found->second);
    });
  }
};

std::map<std::string, Recorded> recorded_presets(bool on_gpt) {
  const std::vector<std::string> lanes = preset_lanes(on_gpt);
  Recorder recorder;
  const RunState end = run(preset_run(on_gpt), recorder);
  std::map<std::string, Recorded> recorded;
  for (size_t i = 0; i < lanes.size(); ++i) {
    Recorded& lane = recorded[lanes[i]];
    lane.tensors = end.lanes[i].tensors;
    for (const StepRecord& step : recorder.steps) {
      lane.losses.push_back(step.lanes[i].loss);
      for (const SiteRecord& site : step.lanes[i].sites) {
        lane.hashes.push_back(site.measured ? site.stats.bits_hash : 0);
      }
    }
  }
  return recorded;
}

TEST_CASE("presets: each differs from FP32 and from what it extends, except those declared equal") {
  const auto on_lenet = recorded_presets(/*on_gpt=*/false);
  const auto on_gpt = recorded_presets(/*on_gpt=*/true);
  size_t same = 0, compared = 0;
  for (const Policy& preset : presets()) {
    if (preset.name == "fp32") continue;
    const auto& recorded = names_blocks(preset) ? on_gpt : on_lenet;
    const std::string label = preset.label();
    std::vector<std::string> others = {"fp32"};
    if (!preset.extends.empty()) others.push_back(preset.extends);
    for (const std::string& other : others) {
      CAPTURE(label);
      CAPTURE(other);
      const auto declared = kSameOnLenet.find(label);
      const bool is_same = declared != kSameOnLenet.end() && declared->second.first == other;
      CHECK(recorded.at(label).same_bits(recorded.at(other)) == is_same);
      same += is_same;
      ++compared;
    }
  }
  CHECK(same == kSameOnLenet.size());
  CHECK(compared > presets().size());
}

}  // namespace
}  // namespace lockstep

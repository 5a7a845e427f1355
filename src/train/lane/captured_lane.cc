// See captured_lane.h.
#include "src/train/lane/captured_lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "src/policy/find_policy.h"
#include "src/policy/parse/toml_text.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {
namespace {

std::string recipe(const Capture& capture) {
  const std::string narrow = weight_format(capture);
  if (!narrow.empty()) {
    return fmt::format("weights in {}{}{}{}", narrow,
                       capture.master_weights ? " with FP32 masters" : "",
                       capture.amp.autocast ? ", autocast " + capture.amp.dtype : "",
                       capture.scaler.enabled ? ", GradScaler" : "");
  }
  if (!capture.amp.autocast) return "as the model says, without autocast around it";
  return fmt::format("autocast {} on {}{}", capture.amp.dtype, capture.amp.device_type,
                     capture.scaler.enabled ? " with GradScaler" : "");
}

// What the captured run did and no lane does.
std::vector<std::string> unmodelled(const Capture& capture) {
  std::vector<std::string> notes;
  const CapturedAmp& amp = capture.amp;
  if (capture.world_size > 1 && !records_updates(capture)) {
    notes.push_back(
        fmt::format("the captured loop stepped with the mean gradient of {} ranks, a replay with "
                    "that of rank 0's batches",
                    capture.world_size));
  }
  if (amp.autocast && !amp.cache_enabled) {
    notes.emplace_back(
        "autocast's weight cache was off: V7 does without, presets have it ([autocast] "
        "weight_cache = false)");
  }
  if (!capture.device.starts_with("cuda")) {
    const auto has_its_name = [&](const Format& format) { return format.name == amp.cpu_products; };
    if (std::ranges::any_of(formats(), has_its_name)) {
      notes.push_back("PyTorch's FP32 products on the CPU were allowed " + amp.cpu_products +
                      " inside, which no lane models");
    }
    return notes;
  }
  if (amp.tf32_matmul || amp.tf32_conv) {
    notes.push_back(fmt::format(
        "PyTorch's FP32 {} were allowed TF32: compare `captured` with the lane tf32, not fp32",
        amp.tf32_matmul && amp.tf32_conv ? "matrix products and convolutions"
        : amp.tf32_matmul                ? "matrix products"
                                         : "convolutions"));
  }
  if (amp.autocast && amp.reduced_sums) {
    notes.push_back(
        fmt::format("cuBLAS was allowed to round sums to {} where it splits them, "
                    "which no lane models",
                    amp.dtype));
  }
  return notes;
}

}  // namespace

std::string autocast_preset(const Capture& capture) {
  return "torch-autocast-" + capture.amp.dtype + (capture.amp.device_type == "cpu" ? "-cpu" : "");
}

std::string weight_format(const Capture& capture) {
  const Format* narrowest = &find_format("fp32");
  for (const Graph& graph : capture.graphs) {
    for (const Parameter& p : graph.parameters) {
      if (p.format.empty()) continue;
      const Format& format = find_format(p.format);
      if (format.storage_bits() < narrowest->storage_bits()) narrowest = &format;
    }
  }
  return narrowest->is_fp32() ? "" : narrowest->name;
}

bool runs_cpu_kernels(const Capture& capture) {
  return !capture.device.starts_with("cuda");
}

std::string narrow_preset(const Capture& capture) {
  return "as-captured-" + weight_format(capture) + (capture.master_weights ? "-master" : "") +
         (runs_cpu_kernels(capture) ? "-cpu" : "");
}

bool uses_autocast(const Capture& capture) {
  return capture.amp.autocast || std::ranges::any_of(capture.graphs, [](const Graph& graph) {
           return std::ranges::any_of(
               graph.nodes, [](const Node& node) { return node.autocast == AutocastRegion::kOn; });
         });
}

bool lacks_scaler(const Capture& capture) {
  const bool has_small_range = find_format(capture.amp.dtype).emax < find_format("fp32").emax;
  return is_inference(capture) ||
         (uses_autocast(capture) && !capture.scaler.enabled && has_small_range);
}

std::string equal_lane(const Capture& capture) {
  if (!unmodelled(capture).empty()) return "";
  if (!weight_format(capture).empty()) {
    return uses_autocast(capture) ? "" : narrow_preset(capture);
  }
  return uses_autocast(capture) ? autocast_preset(capture) : std::string(kReferenceLane);
}

std::vector<std::string> captured_notes(const Capture& capture) {
  std::vector<std::string> notes = capture.notes;
  for (std::string& note : unmodelled(capture)) notes.push_back(std::move(note));
  if (is_inference(capture)) {
    notes.emplace_back(
        "inference: forward passes alone, without gradients, updates and loss scales");
  } else if (records_updates(capture)) {
    notes.push_back(
        fmt::format("the updates of {} are recorded: {}", capture.optimizer_class, kRecordedNote));
    if (capture.world_size > 1) {
      notes.push_back(
          fmt::format("the recorded updates are those of {} ranks; losses and gradients are of "
                      "rank 0's batches",
                      capture.world_size));
    }
  }
  return notes;
}

LaneDescription describe_captured_lane(const Capture& capture) {
  LaneDescription lane;
  lane.name = kCapturedLane;
  lane.engine = "pytorch";
  lane.target = capture.device;
  lane.policy = find_policy(kReferenceLane);
  lane.policy.name = kCapturedLane;
  lane.policy.version.clear();
  lane.policy.help = "what PyTorch itself did: " + recipe(capture);
  lane.policy.aliases.clear();
  lane.policy.text = fmt::format("# no policy: recorded by PyTorch {} on {}, {}\n",
                                 capture.torch_version, capture.device, recipe(capture)) +
                     toml_text(toml::table{{"name", kCapturedLane}});
  lane.policy.notes = captured_notes(capture);
  for (const std::string& note : lane.policy.notes) {
    lane.policy.text += fmt::format("{}{}\n", kCapturedNote, note);
  }
  const std::string equal = equal_lane(capture);
  if (!equal.empty()) lane.policy.text += fmt::format("{}{}\n", kCapturedEqual, equal);
  return lane;
}

std::string describe_captured_data(const Capture& capture) {
  return fmt::format("captured: {} steps of {}, PyTorch {} on {}", capture.steps.size(),
                     capture.model_class, capture.torch_version, capture.device);
}

namespace {

uint64_t hash_of(const void* data, size_t bytes, uint64_t hash) {
  return fnv1a({static_cast<const char*>(data), bytes}, hash);
}
// Of the batch itself; the others are computed from it.
bool is_of_batch(const std::string& path) {
  return !path.starts_with("derived:");
}
uint64_t hash_batch(const CapturedMicroBatch& micro, uint64_t hash) {
  for (const auto& [path, tensor] : micro.inputs) {
    if (is_of_batch(path)) hash = hash_of(tensor.raw(), tensor.bytes(), hash);
  }
  return hash;
}

}  // namespace

std::string hash_captured_batches(const Capture& capture) {
  uint64_t hash = 0;
  for (const CapturedStep& step : capture.steps) {
    for (const CapturedMicroBatch& micro : step.micro) {
      hash = hash_batch(micro, hash);
      for (const auto& [node, mask] : micro.masks) {
        hash = hash_of(mask.bytes.data(), mask.bytes.size(), hash);
      }
    }
  }
  return fmt::format("{:016x}", hash);
}

ScriptLines lines_of_batches(const Capture& capture) {
  std::set<uint64_t> different;
  std::map<std::string, uint64_t> inputs;  // over all steps
  size_t count = 0;
  uint64_t masks = 0;
  for (const CapturedStep& step : capture.steps) {
    for (const CapturedMicroBatch& micro : step.micro) {
      ++count;
      different.insert(hash_batch(micro, 0));
      for (const auto& [path, tensor] : micro.inputs) {
        if (!is_of_batch(path)) continue;
        uint64_t& hash = inputs[path];
        hash = hash_of(tensor.raw(), tensor.bytes(), hash);
      }
      for (const Node& node : capture.graphs.at(static_cast<size_t>(micro.graph)).nodes) {
        const auto mask = micro.masks.find(node.id);
        if (mask == micro.masks.end()) continue;
        masks = hash_of(mask->second.bytes.data(), mask->second.bytes.size(), masks);
      }
    }
  }
  ScriptLines lines = {
      {.of = kBatchesLine, .value = fmt::format("{} of {}", different.size(), count)},
      {.of = kMasksLine, .value = fmt::format("{:016x}", masks)}};
  for (const auto& [path, hash] : inputs) {
    lines.push_back({.of = kInputLine + printable(path), .value = fmt::format("{:016x}", hash)});
  }
  return lines;
}

void fill_captured_step(const Capture& capture, const LaneContext& context, int64_t step,
                        LaneStep& out) {
  const CapturedStep& captured = capture.steps.at(static_cast<size_t>(step));
  out.loss = captured.loss;
  out.losses.assign(context.losses.size(), kNotRecorded);
  out.seconds = kNotRecorded;
  for (size_t group = 0; group < context.groups.size(); ++group) {
    out.lr.push_back(context.lr(group, step));
  }
  out.gradient_norm = captured.clip.total_norm;
  const std::vector<Parameter>& names = capture.graphs.front().parameters;  // of grad_norms
  for (const Parameter& p : context.step_graph->parameters) {
    const auto at = std::ranges::find(names, p.name, &Parameter::name);
    const auto k = static_cast<size_t>(at - names.begin());
    out.gradient_norms.push_back(k < captured.grad_norms.size() ? captured.grad_norms[k]
                                                                : kNotRecorded);
  }
  ScalerRecord scaler;
  scaler.scale = captured.scale_before;
  scaler.found_inf = captured.found_inf;
  scaler.skipped = !captured.stepped && !is_inference(capture);
  scaler.growth_tracker = static_cast<int32_t>(captured.growth_tracker_after);
  out.scalers = {scaler};
}

}  // namespace lockstep

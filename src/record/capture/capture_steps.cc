// Reads the steps of the captured loop: batches, masks, scaler, clipping, numbers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/core/error.h"
#include "src/graph/op.h"
#include "src/policy/policy.h"
#include "src/record/capture/capture_contents.h"

namespace lockstep {
namespace {

// The format of a loss by torch's name of it; FP32 if nothing narrower was recorded.
std::string loss_format_of(const std::string& torch_dtype) {
  constexpr std::string_view kTorchDtypes[] = {"float16", "bfloat16"};
  const auto known = std::ranges::find(kTorchDtypes, torch_dtype);
  return known == std::end(kTorchDtypes) ? "fp32" : find_format(*known).name;
}

// Autocast's formats by torch's names, which are aliases of ours.
std::string format_of(const std::string& torch_dtype, const StoredFields& at) {
  constexpr std::string_view kTorchDtypes[] = {"float16", "bfloat16"};
  const auto known = std::ranges::find(kTorchDtypes, torch_dtype);
  if (known == std::end(kTorchDtypes)) {
    at.problem("dtype is '" + torch_dtype + "', must be float16 or bfloat16");
    return find_format(kTorchDtypes[0]).name;
  }
  return find_format(*known).name;
}

void read_scaler(const StoredFields& at, CapturedScaler& scaler) {
  scaler.enabled = at.there() && at.flag("enabled", false);
  if (!scaler.enabled) return;
  scaler.spec = find_loss_scaler(kGradScaler).defaults;
  scaler.spec.init_scale = at.number("scale", scaler.spec.init_scale);
  scaler.spec.growth_factor = at.number("growth_factor", scaler.spec.growth_factor);
  scaler.spec.backoff_factor = at.number("backoff_factor", scaler.spec.backoff_factor);
  scaler.spec.growth_interval = at.integer("growth_interval", scaler.spec.growth_interval);
  const auto require = [&](bool ok, const std::string& what) {
    if (!ok) at.problem(what);
  };
  const LossScaleSpec& s = scaler.spec;
  require(s.init_scale > 0 && std::isfinite(s.init_scale), "scale must be positive and finite");
  require(s.growth_factor > 1 && std::isfinite(s.growth_factor), "growth_factor must be above 1");
  require(s.backoff_factor > 0 && s.backoff_factor < 1, "backoff_factor must be in (0, 1)");
  require(s.growth_interval > 0, "growth_interval must be positive");
  scaler.start = find_loss_scaler(kGradScaler).initial(s);
  scaler.start.growth_tracker = at.integer("growth_tracker", 0);
}

// Whether the node draws a mask in the captured run.
bool draws(const Node& node) {
  return drawn_mask(node) != nullptr && find_op(node.op).meaning.draws_mask(node);
}

void read_masks(const StoredFields& micro, const Graph& graph, Masks& masks) {
  std::map<std::string_view, const TensorType*> drawn_by;
  for (const Node& node : graph.nodes) {
    if (const TensorType* drawn = drawn_mask(node)) drawn_by[node.id] = drawn;
  }
  const StoredFields rng = micro.optional("rng");
  for (const std::string& name : rng.children()) {
    const StoredFields mask = rng.child(name);
    const std::string id = mask.text("node");
    const auto drawn = drawn_by.find(id);
    if (drawn == drawn_by.end()) {
      mask.problem("is the mask of node '" + id + "', which draws none");
      continue;
    }
    const std::optional<Shape> extents = mask.shape("shape");
    if (!extents) continue;
    if (!broadcasts_to(*extents, drawn->second->shape)) {
      mask.problem(fmt::format("shape {} does not fit node {}, whose mask is {}",
                               to_string(*extents), id, to_string(drawn->second->shape)));
      continue;
    }
    std::optional<PackedBits> bits = mask.take_bits(*extents);
    if (!bits) continue;
    if (!masks.emplace(id, std::move(*bits)).second) {
      mask.problem("node " + id + " has a mask already");
    }
  }
  for (const Node& node : graph.nodes) {
    if (!draws(node) || masks.contains(node.id)) continue;
    if (micro.there()) rng.problem(fmt::format("no mask of node {} ({})", node.id, node.op));
  }
}

CapturedMicroBatch read_micro(const StoredFields& at, const Capture& capture) {
  CapturedMicroBatch micro;
  micro.graph = at.integer("graph", 0);
  micro.loss = at.number("loss", kNotRecorded);
  micro.loss_mult = at.number("loss_mult", 1);
  if (micro.graph < 0 || micro.graph >= static_cast<int64_t>(capture.graphs.size())) {
    at.problem(fmt::format("graph is {}, the file has {}", micro.graph, capture.graphs.size()));
    micro.graph = 0;  // one that exists
    return micro;
  }
  const Graph& graph = capture.graphs[static_cast<size_t>(micro.graph)];
  const StoredFields inputs = at.child("inputs");
  for (const GraphInput& input : graph.inputs) {
    constexpr size_t kPrefix = 2;  // "in"
    const StoredFields values = inputs.child(input.id.substr(kPrefix));
    micro.inputs.emplace(input.path, values.take_tensor(input.type, Container::kF32));
  }
  read_masks(at, graph, micro.masks);
  return micro;
}

CapturedClip read_clip(const StoredFields& at) {
  CapturedClip clip;
  const double max_norm = at.number("clip_max_norm", -1, /*required=*/false);
  const double max_value = at.number("clip_max_value", -1, /*required=*/false);
  const bool by_norm = max_norm >= 0, by_value = max_value >= 0;
  if (!by_norm && !by_value) return clip;
  if (by_norm) clip.max_norm = max_norm;
  if (by_value) clip.max_value = max_value;
  clip.total_norm = at.number("clip_total_norm", kNotRecorded, /*required=*/false);
  const std::string stage = at.text("clip_stage");
  clip.scaled = stage == "scaled";
  if (stage != "scaled" && stage != "unscaled") {
    at.problem("clip_stage is '" + stage + "', must be unscaled or scaled if there is clipping");
  }
  if (by_norm) {
    clip.norm_type = at.number("clip_norm_type", clip.norm_type, /*required=*/false);
    if (!(clip.norm_type > 0)) {
      at.problem(fmt::format("clip_norm_type is {}: a positive number or infinity required",
                             clip.norm_type));
    }
  }
  if (by_norm && (max_norm == 0 || !std::isfinite(max_norm))) {
    at.problem(fmt::format("clip_max_norm is {}: a positive number required", max_norm));
  }
  if (by_value && (max_value == 0 || !std::isfinite(max_value))) {
    at.problem(fmt::format("clip_max_value is {}: a positive number required", max_value));
  }
  return clip;
}

CapturedStep read_step(const StoredFields& at, const Capture& capture) {
  CapturedStep step;
  step.loss = at.number("loss", kNotRecorded);
  step.loss_format = loss_format_of(at.text("loss_dtype", /*required=*/false));
  step.scale_before = at.number("scale_before", 1);
  step.scale_after = at.number("scale_after", 1);
  step.growth_tracker_after = at.integer("growth_tracker_after", 0, /*required=*/false);
  step.found_inf = at.flag("found_inf", false);
  step.stepped = at.flag("stepped", true);
  step.clip = read_clip(at);
  step.hyper = read_hyper(at, capture);
  const StoredFields micro = at.child("micro");
  const auto count = static_cast<int64_t>(micro.children().size());
  if (micro.there() && count == 0) micro.problem("has no micro-batch");
  for (int64_t m = 0; m < count; ++m) {
    step.micro.push_back(read_micro(micro.child(fmt::format("{:03d}", m)), capture));
  }
  if (at.has("grad_norms")) {
    step.grad_norms = at.child("grad_norms").numbers();
    const size_t wanted = capture.graphs.front().parameters.size();
    if (step.grad_norms.size() > wanted) {
      at.problem(fmt::format("grad_norms has {} numbers, the graphs have {} parameters",
                             step.grad_norms.size(), wanted));
    }
    step.grad_norms.resize(wanted, kNotRecorded);  // those that only later steps' graphs have
  }
  if (at.has("grads")) step.grads = read_gradients(at.child("grads"), capture, Container::kF32);
  if (at.has("params")) {
    step.weights = read_gradients(at.child("params"), capture, Container::kF32);
  } else if (records_updates(capture) && step.stepped) {
    at.problem("has no group params, the weights after the step");
  }
  return step;
}

}  // namespace

void read_amp(const StoredFields& root, Capture& capture) {
  const StoredFields amp = root.child("amp");
  capture.amp.autocast = amp.flag("autocast", false);
  capture.amp.device_type = amp.text("device_type", capture.amp.autocast);
  if (capture.amp.autocast || amp.has_attribute("dtype")) {
    capture.amp.dtype = format_of(amp.text("dtype"), amp);
  }
  capture.amp.cache_enabled = amp.flag("cache_enabled", true, /*required=*/false);
  capture.amp.tf32_matmul = amp.flag("allow_tf32_matmul", false, /*required=*/false);
  capture.amp.tf32_conv = amp.flag("allow_tf32_cudnn", false, /*required=*/false);
  capture.amp.reduced_sums =
      amp.flag(capture.amp.dtype + "_reduced_precision_reduction", false, /*required=*/false);
  capture.amp.cpu_products = amp.text("cpu_products", /*required=*/false);
  capture.amp.threads = amp.integer("threads", 1, /*required=*/false);
  if (capture.amp.threads < 1 || capture.amp.threads > kMostCpuThreads) {
    amp.problem(
        fmt::format("threads is {}, must be in 1..{}", capture.amp.threads, kMostCpuThreads));
  }
  read_scaler(amp.optional("scaler"), capture.scaler);
}

void read_steps(const StoredFields& root, Capture& capture) {
  const StoredFields steps = root.child("steps");
  const auto count = static_cast<int64_t>(steps.children().size());
  const int64_t announced = root.integer("n_steps", count);
  if (steps.there() && (count == 0 || announced != count)) {
    steps.problem(fmt::format("has {} steps, n_steps is {}", count, announced));
  }
  for (int64_t s = 0; s < count; ++s) {
    capture.steps.push_back(read_step(steps.child(fmt::format("{:06d}", s)), capture));
  }
}

}  // namespace lockstep

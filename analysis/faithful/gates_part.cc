// V8: a part's outputs against those of the run that it was taken from, its gradients against
// PyTorch's of the part run alone, which the capture compared with the run's.
//
// Every output, gradient of an input and gradient of a weight: |replay - run| / |run|, at most
//   an FP32 run     kPlainShare, kChaosFactor times the change between equally good versions
//                   (versions.h), or for a weight's what the order of its terms explains, as in V3
//   a narrow run    kNarrowFloor, kFormatShare of what the formats do to it (the run against the
//                   FP32 lane), or twice the change between versions: the bounds of V7 as distances
//
// Gradients of parts on several ranks are the rank's own here; the folder's check adds them up.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>

#include "analysis/faithful/captured_policy.h"
#include "analysis/faithful/captured_step.h"
#include "analysis/faithful/gate_bounds.h"
#include "analysis/faithful/gate_list.h"
#include "analysis/faithful/gate_norms.h"
#include "analysis/faithful/gradient_terms.h"
#include "analysis/faithful/versions.h"
#include "emulation/format/format.h"
#include "emulation/kernels/active_kernels.h"
#include "src/core/counted.h"
#include "src/execute/finite.h"
#include "src/graph/watched.h"
#include "src/policy/find_policy.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {
namespace {

constexpr double kPlainShare = 1e-5, kNarrowFloor = 0.045, kFormatShare = 0.32;
constexpr double kTimesNarrow = 2;
constexpr std::string_view kGradientOf = "gradient of ";
constexpr int kLargeVersions = 3;  // of a part that takes seconds a run

// The results of a step by what they are: "output of call 0", "gradient of layers.0.a.weight".
Tensors named_results(const CapturedPart& part, const ComputedStep& step) {
  Tensors found;
  for (size_t call = 0; call < step.watched.size(); ++call) {
    for (const auto& [name, y] : step.watched[call]) {
      found[fmt::format("{} of call {}", name, call)] = y;
    }
    for (const auto& [path, dx] : step.input_gradients[call]) {
      found[fmt::format("gradient of {} in call {}", path, call)] = dx;
    }
  }
  for (const auto& [name, dw] : step.gradients) {
    if (part.gradients.contains(name)) found[std::string(kGradientOf) + name] = dw;
  }
  return found;
}

// The weight whose gradient the result is; else no weight's name.
std::string weight_of(const std::string& result) {
  return result.starts_with(kGradientOf) ? result.substr(kGradientOf.size()) : "";
}

// The same of the run. `batch['inputs']['x']` is how the graph calls the argument x. Outputs that
// got no gradient are not in the graph.
Tensors results_of_run(const Capture& capture) {
  const CapturedPart& part = *capture.part;
  Tensors found;
  for (size_t call = 0; call < part.calls.size(); ++call) {
    const CapturedMicroBatch& micro = capture.steps.front().micro.at(call);
    const Graph& graph = capture.graphs.at(static_cast<size_t>(micro.graph));
    for (const auto& [name, y] : part.calls[call].outputs) {
      if (!graph.outputs.contains(std::string(kWatchPrefix) + name)) continue;
      found[fmt::format("{} of call {}", name, call)] = y;
    }
    for (const auto& [name, dx] : part.calls[call].input_gradients) {
      found[fmt::format("gradient of batch['inputs']['{}'] in call {}", name, call)] = dx;
    }
  }
  for (const auto& [name, dw] : part.gradients) found[std::string(kGradientOf) + name] = dw;
  return found;
}

struct ComparedResult {
  double off = 0, version = 0, formats = 0;  // relative to the run's norm
};

double bound_of(const ComparedResult& judged, bool is_narrow, double noise) {
  if (is_narrow) {
    return std::max({kNarrowFloor, kFormatShare * judged.formats, kTimesNarrow * judged.version});
  }
  return std::max({kPlainShare, kChaosFactor * judged.version, noise});
}

}  // namespace

GateResult gate_v8(const Capture& capture) {
  GateResult gate{.name = "V8", .is_required = true};
  const CapturedPart& part = *capture.part;
  const std::string preset = captured_preset(capture);
  const bool is_narrow = preset != kReferenceLane;
  gate.subject = preset + " against the run: outputs and gradients of the part";
  const auto started = std::ranges::find_if(capture.verify, &CapturedVerify::is_start);
  const Tensors& values =
      started == capture.verify.end() ? capture.start.values : started->before.values;
  const CapturedStep& step = capture.steps.front();

  const Policy policy = captured_policy(capture);
  CapturedStepRunner runner(capture, policy, /*is_fp64=*/false);
  const Tensors ours = named_results(part, runner.run(step, values, step.scale_before));
  const Tensors run = results_of_run(capture);
  std::map<std::string, ComparedResult> found;
  int64_t left = 0;
  for (const auto& [name, theirs] : run) {
    const Tensor* own = find_named(ours, name);
    if (own == nullptr || own->size() != theirs.size()) {
      gate.details.push_back(name + ": the replay has none of this shape");
      continue;
    }
    if (!all_finite(active_kernels(), theirs)) {
      ++left;
      continue;
    }
    const Distance d = distance(*own, theirs);
    found[name].off = d.reference > 0 ? d.difference / d.reference : d.difference;
  }
  const auto compare = [&](const ComputedStep& other, const Tensors& with,
                           double ComparedResult::*into) {
    for (const auto& [name, tensor] : named_results(part, other)) {
      const auto entry = found.find(name);
      if (entry == found.end()) continue;
      const Distance d = distance(tensor, with.at(name));
      const double norm = distance(run.at(name), run.at(name)).value;
      const double apart = norm > 0 ? d.difference / norm : d.difference;
      if (std::isfinite(apart)) entry->second.*into = std::max(entry->second.*into, apart);
    }
  };
  const int versions = is_large(capture) ? kLargeVersions : kFewVersions;
  for (int i = 0; i < versions; ++i) {
    compare(run_version(version_of(i), capture, policy, step, values), ours,
            &ComparedResult::version);
  }
  if (is_narrow) {
    const Policy fp32 = find_policy(kReferenceLane);
    CapturedStepRunner plain(capture, fp32, /*is_fp64=*/false);
    compare(plain.run(step, values, step.scale_before), run, &ComparedResult::formats);
  }
  const std::map<std::string, double> terms = terms_of_gradients(capture);
  const auto noise_of = [&](const std::string& name) {
    const double* count = find_named(terms, name);
    return count == nullptr
               ? 0
               : kNoiseFactor * std::sqrt(*count) * find_format("fp32").unit_roundoff();
  };
  Worst worst;
  double largest = 0;
  for (const auto& [name, judged] : found) {
    const double bound = bound_of(judged, is_narrow, noise_of(weight_of(name)));
    worst.take(judged.off, bound, name);
    largest = std::max(largest, judged.off);
    if (judged.off <= bound) continue;
    gate.details.push_back(
        fmt::format("{}: off by {:.1e} of its norm, at most {:.1e}; equally good versions {:.1e}{}",
                    name, judged.off, bound, judged.version,
                    is_narrow ? fmt::format(", the formats {:.1e}", judged.formats) : ""));
  }
  if (found.empty() && gate.details.empty()) {
    gate.figure = "nothing in the run's step is finite";
    return gate;
  }
  gate.status = gate.details.empty() && worst.ratio <= 1 ? GateStatus::kPass : GateStatus::kFail;
  gate.ratio = worst.ratio;
  gate.figure = fmt::format("{} of their bound (worst {}), off by at most {:.1e}, {}{}",
                            fmt::format("{:.2g}", worst.ratio), worst.where, largest,
                            counted(found.size(), "tensor"),
                            left == 0 ? "" : fmt::format("; {} not finite in the run", left));
  return gate;
}

}  // namespace lockstep

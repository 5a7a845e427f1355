// V7: compares the emulated low-precision step with what the user's machine really did; each verify
// step starts from the captured state. Never bit by bit: a real matrix product has its own order of
// sums.
//
//   loss       mean |emulated - captured| <= max(half of mean |captured - FP32|, half of the
//              rounding noise, twice the chaos floor, twice the distance of FP32 to PyTorch's
//              FP32, which V3 judges, one ulp of the loss in its own format, in which PyTorch's CPU
//              kernels of losses also add up: see loss_sum_floor)
//   gradients  per parameter, mean over steps: 1 - cos(emulated, captured)
//              <= max(0.001, a tenth of 1 - cos(captured, FP32), four times the chaos floor); noise
//              elements left out
//
// Rounding noise: the root mean square of emulated - the same with stochastic rounding, over
// kNoiseDraws; mean over steps. captured - FP32 is a single draw of what the formats do to the
// loss, and may be zero by luck. Chaos floor: how far equally good versions of the emulated step
// are from it, the largest of their mean distances (see version_of). For the loss also that of the
// FP32 lane from weights moved by one FP32 ulp. Twice a distance is four times 1 - cos, which is
// half of the distance squared.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "analysis/faithful/captured_policy.h"
#include "analysis/faithful/captured_step.h"
#include "analysis/faithful/chaos.h"
#include "analysis/faithful/gate_list.h"
#include "analysis/faithful/gate_norms.h"
#include "analysis/faithful/versions.h"
#include "emulation/format/format.h"
#include "emulation/kernels/active_kernels.h"
#include "src/execute/finite.h"
#include "src/graph/composed_ops.h"
#include "src/graph/op.h"
#include "src/policy/find_policy.h"
#include "src/train/lane/captured_lane.h"
#include "src/train/lane/lane_name.h"
#include "src/update/clip.h"

namespace lockstep {
namespace {

constexpr double kLossShare = 0.5, kTimesChaos = 2;
constexpr double kCosineFloor = 0.001, kCosineShare = 0.1;
constexpr uint64_t kNoiseDraws = 4;

// A loss in a narrow format is a mean that PyTorch's CPU kernels add up in that format, in groups
// of 16 whose sums are added in groups of 16 again (aten/src/ATen/native/LossNLL.cpp, cascade_sum).
// A term passes at most 16 additions a level, each with an error of standard deviation u / sqrt(3)
// of the partial sum. Lanes add in FP32. Returns: three standard deviations of the sum's error.
double loss_sum_floor(const Graph& graph, const Format& format, double loss) {
  constexpr double kGroup = 16, kDeviations = 3;
  if (format.is_fp32()) return 0;
  int64_t terms = 1;
  for (const Node& node : graph.nodes) {
    if (!is_loss(node, find_op(node.op))) continue;
    for (const std::string& input : node.inputs) {
      if (const TensorType& type = graph.type_of(input); type.element == ElementType::kInt) {
        terms = std::max(terms, element_count(type.shape));
      }
    }
  }
  const auto n = static_cast<double>(terms);
  const double levels = std::max(1.0, std::ceil(std::log(n) / std::log(kGroup)));
  const double additions = std::min(n - 1, kGroup * levels);
  const double unit_roundoff = std::ldexp(1.0, -format.precision);
  return kDeviations * unit_roundoff * std::sqrt(additions / 3) * std::abs(loss);
}

bool are_finite(const Tensors& tensors) {
  return std::ranges::all_of(
      tensors, [](const auto& entry) { return all_finite(active_kernels(), entry.second); });
}

// Sums over the steps of 1 - cos: emulated to captured, captured to FP32, emulated to its versions.
struct Cosines {
  double ours = 0, theirs = 0;
  std::array<double, kAllVersions> versions = {};
  int64_t count = 0;

  double mean() const { return std::max(ours, 0.0) / static_cast<double>(count); }
  double chaos() const { return *std::ranges::max_element(versions) / static_cast<double>(count); }
  double bound() const { return std::max(relative_bound(), kTimesChaos * kTimesChaos * chaos()); }
  bool is_by_chaos() const { return bound() > relative_bound(); }

 private:
  double relative_bound() const {
    return std::max(kCosineFloor, kCosineShare * theirs / static_cast<double>(count));
  }
};

struct AmpFindings {
  double emulated = 0, captured = 0;  // sums of |loss differences|
  double noise = 0;                   // of the emulated losses, by rounding
  double chaos_fp32 = 0;
  double fp32 = 0;  // of the FP32 losses, here and in PyTorch
  std::array<double, kAllVersions> chaos_low = {};
  double ulps = 0;  // of the captured losses, in their format
  std::string loss_format;
  int64_t steps = 0;
  std::map<std::string, Cosines> cosines;
  FloorShare floor;          // elements and noise over the steps
  std::string disagreement;  // the first disagreement on found_inf
};

// `factor` times gradients, clipped as in the captured loop. Only directions are compared, and
// clipping by norm keeps them: it matters only before a bound on values.
Tensors clipped(Tensors gradients, const CapturedClip& clip, double factor) {
  if (clip.max_value == 0) return gradients;
  std::vector<ClippedGradient> all;
  for (auto& [name, gradient] : gradients) {
    for (float& x : gradient.as<float>()) x = static_cast<float>(x * factor);
    all.push_back({&gradient, &find_format("fp32")});
  }
  if (clip.max_norm > 0) clip_by_norm(active_kernels(), all, clip.max_norm, clip.norm_type);
  clip_by_value(active_kernels(), all, clip.max_value);
  return gradients;
}

// Unscaled and clipped as in the captured loop.
Tensors gradients_of(const ComputedStep& computed, const CapturedStep& step) {
  const double stage = step.clip.scaled ? step.scale_before : 1;  // captured gradients' factor
  return clipped(computed.gradients, step.clip, stage / step.scale_before);
}

// Returns the parameters that were compared.
std::vector<std::string> compare_gradients(const CapturedStep& step, const CapturedVerify& verify,
                                           const Tensors& emulated, AmpFindings& found) {
  std::vector<std::string> compared;
  const Tensors references =
      clipped(verify.grads32, step.clip, step.clip.scaled ? step.scale_before : 1);
  for (const auto& [name, captured] : step.grads_are_ref32 ? verify.grads32 : step.grads) {
    const Tensor* ours = find_named(emulated, name);
    const Tensor* reference = find_named(references, name);
    if (ours == nullptr || reference == nullptr) continue;
    const PackedBits* noise = find_named(verify.noise, name);
    const Distance theirs = distance(captured, *reference, noise);
    found.floor.add({0, 0, 0, theirs.elements, theirs.noise});
    if (theirs.value == 0 || theirs.reference == 0) continue;  // no direction
    Cosines& cosines = found.cosines[name];
    cosines.ours += distance(*ours, captured, noise).one_minus_cosine();
    cosines.theirs += theirs.one_minus_cosine();
    ++cosines.count;
    compared.push_back(name);
  }
  return compared;
}

// Near overflow a version may be infinite where the step is not: it then shows nothing of rounding.
void compare_version(int number, const ComputedStep& version, const CapturedStep& step,
                     const CapturedVerify& verify, double loss, const Tensors& emulated,
                     const std::vector<std::string>& compared, AmpFindings& found) {
  const auto i = static_cast<size_t>(number);
  if (!std::isfinite(version.loss)) return;
  found.chaos_low[i] += std::abs(version.loss - loss);
  const Tensors others = gradients_of(version, step);
  for (const std::string& name : compared) {
    const Distance d = distance(others.at(name), emulated.at(name), find_named(verify.noise, name));
    const double apart = d.one_minus_cosine();
    if (std::isfinite(apart)) found.cosines.at(name).versions[i] += apart;
  }
}

// The root mean square of what stochastic rounding does to the loss.
double rounding_noise(const Capture& capture, Policy policy, const CapturedStep& step,
                      const Tensors& values, double loss) {
  policy.rounding = Rounding::kStochastic;
  CapturedStepRunner runner(capture, policy, false);
  double squares = 0, draws = 0;
  for (uint64_t seed = 1; seed <= kNoiseDraws; ++seed) {
    const ComputedStep drawn = runner.run(step, values, step.scale_before, {}, seed);
    if (!std::isfinite(drawn.loss)) continue;
    squares += (drawn.loss - loss) * (drawn.loss - loss);
    ++draws;
  }
  return draws > 0 ? std::sqrt(squares / draws) : 0;
}

GateResult judged(const AmpFindings& found, GateResult gate) {
  const auto n = static_cast<double>(found.steps);
  const double chaos = std::max(found.chaos_fp32, *std::ranges::max_element(found.chaos_low));
  const double emulated = found.emulated / n;
  const double noise = std::max(found.captured, found.noise);
  const double measured =
      std::max({kLossShare * noise, kTimesChaos * chaos, kTimesChaos * found.fp32}) / n;
  const double bound = std::max(measured, found.ulps / n);
  const std::string by_ulp =
      bound > measured && emulated > measured
          ? fmt::format(", judged by a floor: one ulp of the loss in {}, or its sum there",
                        found.loss_format)
          : "";
  Worst gradients;
  gate.floor = found.floor;
  for (const auto& [name, c] : found.cosines) {
    gradients.take(c.mean(), c.bound(), name);
    gate.floor.add({1, 0, c.is_by_chaos() ? 1 : 0, 0, 0});
  }
  gate.status = emulated <= bound && gradients.ratio <= 1 ? GateStatus::kPass : GateStatus::kFail;
  gate.figure = fmt::format(
      "loss {:.1e} (at most {:.1e}{}; captured to FP32 {:.1e}, rounding noise {:.1e}, equally "
      "good versions {:.1e}), "
      "{}, {} steps{}",
      emulated, bound, by_ulp, found.captured / n, found.noise / n, chaos / n,
      gradients_text(gradients, gate.floor), found.steps,
      found.disagreement.empty() ? "" : "; " + found.disagreement);
  if (gate.status == GateStatus::kPass) {
    const bool fp32_would_pass =
        found.captured / n <= bound && std::ranges::all_of(found.cosines, [](const auto& entry) {
          const Cosines& c = entry.second;
          const auto count = static_cast<double>(c.count);
          return c.theirs / count <= std::max(kCosineFloor, kTimesChaos * kTimesChaos * c.chaos());
        });
    if (fp32_would_pass) gate.figure += "; FP32 in its place would pass, too";
    return gate;
  }
  for (const auto& [name, c] : found.cosines) {
    if (c.mean() <= c.bound()) continue;
    const auto count = static_cast<double>(c.count);
    gate.details.push_back(fmt::format(
        "{}: 1 - cos {:.2e}, at most {:.2e}; captured to FP32 {:.2e}, equally good versions {:.2e}",
        name, c.mean(), c.bound(), c.theirs / count, c.chaos()));
  }
  return gate;
}

// The lane that does what the captured run did, step by step.
class AmpComparison {
 public:
  AmpComparison(const Capture& capture, const Policy& policy)
      : capture_(capture),
        policy_(policy),
        fp32_(find_policy(kReferenceLane)),
        low_(capture, policy_, false),
        single_(capture, fp32_, false) {}

  AmpFindings compare(int versions) {
    for (const CapturedVerify& verify : capture_.verify) {
      if (verify.comparable()) take_step(verify, versions);
    }
    return found_;
  }
  // Those from `first` on, of the steps that were compared.
  AmpFindings add_versions(int first, int end) {
    for (const auto& [verify, names] : compared_) {
      const ComputedStep emulated = run(*verify);
      take_versions(*verify, emulated.loss, gradients_of(emulated, step_of(*verify)), names, first,
                    end);
    }
    return found_;
  }

 private:
  const CapturedStep& step_of(const CapturedVerify& verify) const {
    return capture_.steps.at(static_cast<size_t>(verify.step));
  }
  ComputedStep run(const CapturedVerify& verify) {
    return low_.run(step_of(verify), verify.before.values, step_of(verify).scale_before);
  }

  void take_step(const CapturedVerify& verify, int versions) {
    const CapturedStep& step = step_of(verify);
    const Tensors& values = verify.before.values;
    const ComputedStep emulated = run(verify);
    const bool overflows = !are_finite(emulated.gradients);
    if (overflows != step.found_inf && found_.disagreement.empty()) {
      found_.disagreement = fmt::format("step {}: found_inf {} here, {} captured", verify.step,
                                        overflows ? 1 : 0, step.found_inf ? 1 : 0);
    }
    if (step.found_inf || !std::isfinite(step.loss)) return;  // nothing to compare with
    const double ours = single_.run(step, values).loss;
    found_.emulated += std::abs(emulated.loss - step.loss);
    found_.captured += std::abs(step.loss - verify.loss32);
    found_.loss_format = step.loss_format;
    for (const CapturedMicroBatch& micro : step.micro) {
      const Format& format = find_format(step.loss_format);
      const Graph& graph = capture_.graphs.at(static_cast<size_t>(micro.graph));
      found_.ulps += std::max(ulp(micro.loss, format), loss_sum_floor(graph, format, micro.loss)) /
                     static_cast<double>(step.micro.size());
    }
    found_.noise += rounding_noise(capture_, policy_, step, values, emulated.loss);
    const Tensors moved = twin_of(capture_.graphs.front(), values);
    found_.chaos_fp32 += std::abs(single_.run(step, moved).loss - ours);
    found_.fp32 += std::abs(ours - verify.loss32);
    ++found_.steps;
    if (overflows) return;
    const Tensors gradients = gradients_of(emulated, step);
    compared_.emplace_back(&verify, compare_gradients(step, verify, gradients, found_));
    take_versions(verify, emulated.loss, gradients, compared_.back().second, 0, versions);
  }

  // One at a time: each order has programs and tensors of its own.
  void take_versions(const CapturedVerify& verify, double loss, const Tensors& gradients,
                     const std::vector<std::string>& names, int first, int end) {
    const CapturedStep& step = step_of(verify);
    for (int i = first; i < end; ++i) {
      const ComputedStep other =
          run_version(version_of(i), capture_, policy_, step, verify.before.values);
      compare_version(i, other, step, verify, loss, gradients, names, found_);
    }
  }

  const Capture& capture_;
  const Policy& policy_;
  Policy fp32_;
  CapturedStepRunner low_, single_;
  AmpFindings found_;
  std::vector<std::pair<const CapturedVerify*, std::vector<std::string>>> compared_;
};

}  // namespace

GateResult gate_v7(const Capture& capture) {
  GateResult gate{.name = "V7", .subject = "autocast as captured"};
  const std::string narrow = weight_format(capture);
  if (!uses_autocast(capture) && narrow.empty()) {
    gate.status = GateStatus::kNotApplicable;
    gate.figure = "the run had no autocast and FP32 weights";
    return gate;
  }
  const Policy policy = captured_policy(capture);
  gate.subject = captured_preset(capture) + " against the captured run";
  AmpComparison comparison(capture, policy);
  const bool large = is_large(capture);
  AmpFindings found = comparison.compare(large ? kFewVersions : kPlainVersions);
  if (found.steps == 0) {
    gate.figure = "every verify step was skipped, or its loss is not finite";
    return gate;
  }
  GateResult first = judged(found, gate);
  if (first.status == GateStatus::kPass || large) return first;
  return judged(comparison.add_versions(kPlainVersions, kAllVersions), std::move(gate));
}

}  // namespace lockstep

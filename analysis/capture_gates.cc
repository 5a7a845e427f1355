// V0, and V1, V3, V4: forward and backward from a captured state, in FP64 and in FP32.
#include "analysis/capture_gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "analysis/capture_gate_parts.h"
#include "src/graph/infer.h"

namespace lockstep {
namespace {

GateResult gate_v0(const Capture& capture) {
  GateResult gate{"V0", "exported graph against the model, at capture time", {}, {}, {}};
  if (capture.v0.empty()) return gate;
  gate.status = capture.v0 == "bit-exact" ? GateStatus::kPass : GateStatus::kFail;
  gate.figure = "stored by the capture: " + capture.v0;
  return gate;
}

double relative(double value, double reference) {
  return reference == 0 ? std::abs(value) : std::abs(value - reference) / std::abs(reference);
}

// A first node whose output has another norm than PyTorch's.
struct FirstDifference {
  std::string text;
  const CapturedVerify* verify = nullptr;
  void look(size_t micro, const Node& node, const Executor& executor, const Graph& graph) {
    if (!text.empty() || micro >= verify->micro.size()) return;
    const auto found = verify->micro[micro].acts.find(node.id);
    if (found == verify->micro[micro].acts.end()) return;
    const Tensor& y = executor.value(node.id);
    if (y.container() == Container::kI32) return;
    const double norm = distance(y, y).value, wanted = found->second[0];
    if (relative(norm, wanted) <= kBoundAct) return;
    text = fmt::format(
        "first node that differs: {} {} in layer '{}'{}: L2 norm {:.9g}, PyTorch {:.9g}", node.id,
        node.op, layer_of(graph, node),
        node.source_line.empty() ? "" : " (" + node.source_line + ")", norm, wanted);
  }
};

// How many steps were judged; what was left out is said.
std::string steps_text(const Capture& capture) {
  const auto judged = std::ranges::count_if(capture.verify, &CapturedVerify::comparable);
  const size_t left = capture.verify.size() - static_cast<size_t>(judged);
  const std::string text = fmt::format("{} step{}", judged, judged == 1 ? "" : "s");
  if (left == 0) return text;
  return text + fmt::format("; {} not judged: PyTorch's own loss is not finite there", left);
}

bool nothing_to_judge(const Capture& capture, GateResult& gate) {
  if (capture.verify.empty()) return true;
  if (std::ranges::any_of(capture.verify, &CapturedVerify::comparable)) return false;
  gate.status = GateStatus::kNotApplicable;
  gate.figure = steps_text(capture);
  return true;
}

struct Judged {
  Worst gradients, losses;
  double loss = 0, loss_bound = 0;  // of the step with the worst loss: relative
  std::vector<std::string> details;
  bool ok() const { return losses.ratio <= 1 && gradients.ratio <= 1 && details.empty(); }
  void take_loss(double off, double bound, int64_t step) {
    const double before = losses.ratio;
    losses.take(off, bound, fmt::format("step {}", step));
    if (loss_bound > 0 && losses.ratio == before) return;
    loss = off;
    loss_bound = bound;
  }
};

// The relative bound on an FP32 loss, see kLossNoiseFactor.
double loss_bound_fp32(double ours, const CapturedVerify& verify) {
  const double noise =
      std::min(relative(ours, verify.loss64), relative(verify.loss32, verify.loss64));
  return std::isfinite(noise) ? std::max(kBoundsV3.loss, kLossNoiseFactor * noise) : kBoundsV3.loss;
}

void judge(const ComputedStep& ours, double loss, double loss_bound, const Tensors& gradients,
           const CapturedVerify& verify, const GateBounds& bounds, Judged& judged) {
  judged.take_loss(relative(ours.loss, loss), loss_bound, verify.step);
  double largest = 0;
  for (const auto& [name, g] : gradients) largest = std::max(largest, distance(g, g).value);
  for (const auto& [name, reference] : gradients) {
    const std::string at = fmt::format("{}, step {}", name, verify.step);
    const Tensor* g = find_tensor(ours.gradients, name);
    const Tensor* noise = find_tensor(verify.noise, name);
    if (g == nullptr) {  // none of ours is a gradient of zero
      const Distance d = distance(reference, reference, noise);
      judged.gradients.take(d.value, bounds.rtol * d.value + bounds.atol * largest, at);
      continue;
    }
    const Distance d = distance(*g, reference, noise);
    judged.gradients.take(d.difference, bounds.rtol * d.reference + bounds.atol * largest, at);
  }
  for (const auto& [name, g] : ours.gradients) {
    if (gradients.contains(name)) continue;
    judged.details.push_back(
        fmt::format("step {}: '{}' has a gradient here and none in PyTorch", verify.step, name));
  }
}

std::string figure_of(const Judged& judged, const GateBounds& bounds, const Capture& capture) {
  const std::string noise = judged.loss_bound > bounds.loss
                                ? fmt::format(": {} times what FP32 differs from FP64 in {}",
                                              kLossNoiseFactor, judged.losses.where)
                                : "";
  return fmt::format(
      "loss {:.1e} (at most {:.{}e}{}), gradients {:.2g} of their bound (worst {}), {}",
      judged.loss, judged.loss_bound, noise.empty() ? 0 : 1, noise, judged.gradients.ratio,
      judged.gradients.where.empty() ? "-" : judged.gradients.where, steps_text(capture));
}

struct Fp32Run {
  ComputedStep step;
  int64_t flips = 0;
  std::string first_difference;
};

Fp32Run run_fp32(CapturedStepRunner& runner, const Capture& capture, const CapturedVerify& verify,
                 bool force) {
  Fp32Run out;
  FirstDifference difference;
  difference.verify = &verify;
  const CapturedStep& step = capture.steps.at(static_cast<size_t>(verify.step));
  out.step = runner.run(step, verify.before.values, 1,
                        [&](size_t micro, const Node& node, Executor& executor, bool done) {
                          if (force && micro < verify.micro.size()) {
                            const auto kink = verify.micro[micro].kinks.find(node.id);
                            if (kink != verify.micro[micro].kinks.end()) {
                              out.flips += force_kinks(node, kink->second, executor, done);
                            }
                          }
                          const auto graph = static_cast<size_t>(step.micro[micro].graph);
                          if (done) difference.look(micro, node, executor, capture.graphs[graph]);
                        });
  out.first_difference = difference.text;
  return out;
}

bool is_mutated(const Capture& capture, const std::string& buffer) {
  return std::ranges::any_of(capture.graphs, [&](const Graph& graph) {
    return std::ranges::find(graph.mutations, buffer, &Mutation::buffer) != graph.mutations.end();
  });
}

// Every buffer that a graph reads or changes, against PyTorch's repetition of the step; and where
// the file has a later state of the captured run, that none changed in it which no graph changes.
struct JudgedBuffers {
  Worst worst;
  bool any = false;  // some buffer changes
  std::vector<std::string> details;

  void take(const Capture& capture, const CapturedVerify& verify, const CapturedVerify* later,
            const Tensors& ours) {
    for (const Graph& graph : capture.graphs) {
      for (const Buffer& buffer : graph.buffers) {
        const Tensor* wanted = find_tensor(verify.after.values, buffer.name);
        if (wanted == nullptr) continue;
        any = any || is_mutated(capture, buffer.name);
        const bool is_int = wanted->container() == Container::kI32;
        const Distance d = distance(ours.at(buffer.name), *wanted);
        worst.take(d.difference, is_int ? 0 : kBoundBuffer * d.reference,
                   fmt::format("{}, step {}", buffer.name, verify.step));
        if (later != nullptr) take_later(capture, verify, *later, buffer.name);
      }
    }
  }

 private:
  void take_later(const Capture& capture, const CapturedVerify& verify, const CapturedVerify& later,
                  const std::string& buffer) {
    const Tensor* before = find_tensor(verify.before.values, buffer);
    const Tensor* after = find_tensor(later.before.values, buffer);
    if (before == nullptr || after == nullptr || is_mutated(capture, buffer)) return;
    const double difference = distance(*after, *before).difference;
    if (difference == 0) return;
    any = true;
    worst.take(difference, 0, fmt::format("{}, step {}", buffer, verify.step));
    details.push_back(
        fmt::format("buffer '{}' changed in the captured run between steps {} and {}, and in no "
                    "graph: what the model did to it was not recorded",
                    buffer, verify.step, later.step));
  }
};

}  // namespace

std::string_view to_string(GateStatus status) {
  constexpr std::string_view kNames[] = {"PASS", "FAIL", "n/a", "not recorded"};
  return kNames[static_cast<size_t>(status)];
}

GateResult gate_v1(const Capture& capture) {
  GateResult gate{"V1", "FP64 replay against PyTorch's FP64", {}, {}, {}};
  if (nothing_to_judge(capture, gate)) return gate;
  const Policy policy = find_policy("fp32");
  CapturedStepRunner runner(capture, policy, /*is_fp64=*/true);
  Judged judged;
  FirstDifference difference;
  for (const CapturedVerify& verify : capture.verify) {
    if (!verify.comparable()) continue;
    difference.verify = &verify;
    const CapturedStep& step = capture.steps.at(static_cast<size_t>(verify.step));
    const ComputedStep ours =
        runner.run(step, verify.before.values, 1,
                   [&](size_t micro, const Node& node, Executor& executor, bool done) {
                     const auto graph = static_cast<size_t>(step.micro[micro].graph);
                     if (done) difference.look(micro, node, executor, capture.graphs[graph]);
                   });
    judge(ours, verify.loss64, kBoundsV1.loss, verify.grads64, verify, kBoundsV1, judged);
  }
  gate.figure = figure_of(judged, kBoundsV1, capture);
  gate.status = judged.ok() ? GateStatus::kPass : GateStatus::kFail;
  if (gate.status == GateStatus::kPass) return gate;
  gate.details = judged.details;
  gate.details.push_back(difference.text.empty()
                             ? "no forward node differs by more than FP32's rounding"
                             : difference.text);
  return gate;
}

GateResult gate_v3(const Capture& capture, GateResult& v4) {
  GateResult gate{"V3", "FP32 replay against PyTorch's FP32", {}, {}, {}};
  v4 = {"V4", "buffers after a step", {}, {}, {}};
  if (nothing_to_judge(capture, gate)) {
    v4.status = gate.status;
    v4.figure = gate.figure;
    return gate;
  }
  const Policy policy = find_policy("fp32");
  CapturedStepRunner runner(capture, policy, /*is_fp64=*/false);
  Judged all;
  JudgedBuffers buffers;
  bool ok = true;
  int64_t flips = 0;
  for (size_t number = 0; number < capture.verify.size(); ++number) {
    const CapturedVerify& verify = capture.verify[number];
    if (!verify.comparable()) continue;
    Fp32Run run = run_fp32(runner, capture, verify, /*force=*/false);
    Judged judged;
    const auto judge_fp32 = [&](const ComputedStep& step, Judged& out) {
      judge(step, verify.loss32, loss_bound_fp32(step.loss, verify), verify.grads32, verify,
            kBoundsV3, out);
    };
    judge_fp32(run.step, judged);
    const bool is_last = number + 1 == capture.verify.size();
    buffers.take(capture, verify, is_last ? nullptr : &capture.verify[number + 1],
                 run.step.buffers);
    if (!judged.ok()) {
      Fp32Run forced = run_fp32(runner, capture, verify, /*force=*/true);
      Judged again;
      judge_fp32(forced.step, again);
      if (forced.flips > 0 && again.ok()) {
        flips += forced.flips;
        judged = again;
      } else {
        ok = false;
        gate.details.insert(gate.details.end(), judged.details.begin(), judged.details.end());
        const char* where = judged.gradients.ratio > 1 ? "look at the backward pass"
                                                       : "the loss alone misses its bound";
        gate.details.push_back(fmt::format("step {}: {}", verify.step,
                                           run.first_difference.empty()
                                               ? fmt::format("no forward node differs: {}", where)
                                               : run.first_difference));
      }
    }
    all.take_loss(judged.loss, judged.loss_bound, verify.step);
    if (judged.gradients.ratio > all.gradients.ratio) all.gradients = judged.gradients;
  }
  gate.figure = figure_of(all, kBoundsV3, capture);
  if (flips > 0) gate.figure += fmt::format("; {} kink flip{}", flips, flips == 1 ? "" : "s");
  gate.status = ok ? GateStatus::kPass : GateStatus::kFail;
  if (!buffers.any) {
    const bool has_mutations = std::ranges::any_of(
        capture.graphs, [](const Graph& graph) { return !graph.mutations.empty(); });
    if (has_mutations) return gate;  // not recorded
    v4.status = GateStatus::kNotApplicable;
    v4.figure = "no buffer of the model changes";
    return gate;
  }
  v4.status = buffers.worst.ratio <= 1 ? GateStatus::kPass : GateStatus::kFail;
  v4.figure = fmt::format("{:.2g} of the bound {:.0e} (worst {}); counts exact",
                          buffers.worst.ratio, kBoundBuffer, buffers.worst.where);
  v4.details = std::move(buffers.details);
  return gate;
}

std::vector<GateResult> verify_capture(const Capture& capture,
                                       const std::function<void(const GateResult&)>& done) {
  std::vector<GateResult> gates;
  const auto add = [&](GateResult gate) {
    gates.push_back(std::move(gate));
    if (done) done(gates.back());
  };
  add(gate_v0(capture));
  add(gate_v1(capture));
  GateResult v4;
  add(gate_v3(capture, v4));
  add(std::move(v4));
  add(gate_v5(capture));
  add(gate_v6(capture));
  add(gate_v7(capture));
  return gates;
}

bool any_failed(const std::vector<GateResult>& gates) {
  return std::ranges::any_of(gates, [](const auto& g) { return g.status == GateStatus::kFail; });
}
bool all_passed(const std::vector<GateResult>& gates) {
  return !any_failed(gates) && std::ranges::any_of(gates, [](const auto& g) {
    return g.name == "V1" && g.status == GateStatus::kPass;
  });
}

double Distance::one_minus_cosine() const {
  if (value == 0 && reference == 0) return 0;
  return 1 - dot / (value * reference);
}

Distance distance(const Tensor& a, const Tensor& b, const Tensor* noise) {
  const auto at = [](const Tensor& t, size_t i) -> double {
    switch (t.container()) {
      case Container::kF32:
        return t.as<float>()[i];
      case Container::kF64:
        return t.as<double>()[i];
      case Container::kI32:
        return t.as<int32_t>()[i];
    }
    return 0;
  };
  Distance d;
  for (size_t i = 0; i < static_cast<size_t>(b.size()); ++i) {
    if (noise != nullptr && noise->as<int32_t>()[i] != 0) continue;
    const double x = at(a, i), y = at(b, i);
    d.difference += (x - y) * (x - y);
    d.value += x * x;
    d.reference += y * y;
    d.dot += x * y;
  }
  d.difference = std::sqrt(d.difference);
  d.value = std::sqrt(d.value);
  d.reference = std::sqrt(d.reference);
  return d;
}

const Tensor* find_tensor(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

// Not a number is as far off as can be.
void Worst::take(double value, double bound, const std::string& at) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  double found = value == 0 ? 0 : value / bound;
  if (std::isnan(found)) found = kFar;
  if (found < ratio || (found == ratio && !where.empty())) return;
  ratio = found;
  where = at;
}

}  // namespace lockstep

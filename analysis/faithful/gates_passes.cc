// V1, V3, V4: forward and backward from a captured state, in FP64 and in FP32.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "analysis/faithful/captured_step.h"
#include "analysis/faithful/chaos.h"
#include "analysis/faithful/gate_bounds.h"
#include "analysis/faithful/gate_list.h"
#include "analysis/faithful/gate_norms.h"
#include "analysis/faithful/gradient_terms.h"
#include "analysis/faithful/kinks.h"
#include "analysis/faithful/whose_gradient.h"
#include "emulation/format/format.h"
#include "src/graph/infer.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

double relative(double value, double reference) {
  return reference == 0 ? std::abs(value) : std::abs(value - reference) / std::abs(reference);
}

// The first node whose output has another norm than PyTorch's.
struct FirstDifference {
  std::string text;
  const CapturedVerify* verify = nullptr;
  void look(size_t micro, const Node& node, const ValueStore& values, const Graph& graph) {
    if (!text.empty() || micro >= verify->micro.size()) return;
    const auto found = verify->micro[micro].acts.find(node.id);
    if (found == verify->micro[micro].acts.end()) return;
    const Tensor& y = values.of(node.id);
    if (y.container() == Container::kI32) return;
    const double norm = distance(y, y).value, wanted = found->second[0];
    if (relative(norm, wanted) <= kBoundAct) return;
    text = fmt::format(
        "first node that differs: {} {} in layer '{}'{}: L2 norm {:.9g}, PyTorch {:.9g}", node.id,
        node.op, layer_of(graph, node),
        node.source_line.empty() ? "" : " (" + node.source_line + ")", norm, wanted);
  }
};

// How many steps were judged, and how many were not.
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

// On a loss, relative.
struct LossBound {
  double value = 0;
  std::string floor = {};  // what `value` is, unless it is the gate's own bound
  void raise(double factor, double error, const char* what) {
    if (!std::isfinite(error) || factor * error <= value) return;
    *this = {factor * error, fmt::format("{} times {}", factor, what)};
  }
};

struct Judged {
  Worst gradients, losses;
  std::string worst_parameter;  // of `gradients`
  int64_t worst_step = -1;
  FloorShare floor;      // of the gradients
  double loss = 0;       // of the step with the worst loss: relative
  LossBound loss_bound;  // of that step
  std::vector<std::string> details;
  bool ok() const { return losses.ratio <= 1 && gradients.ratio <= 1 && details.empty(); }
  void take_loss(double off, const LossBound& bound, int64_t step) {
    const double before = losses.ratio;
    losses.take(off, bound.value, fmt::format("step {}", step));
    if (loss_bound.value > 0 && losses.ratio == before) return;
    loss = off;
    loss_bound = bound;
  }
  // What was judged of one more step.
  void add(const Judged& step_judged, int64_t step) {
    floor.add(step_judged.floor);
    take_loss(step_judged.loss, step_judged.loss_bound, step);
    if (step_judged.gradients.ratio > gradients.ratio || worst_step < 0) {
      gradients = step_judged.gradients;
      worst_parameter = step_judged.worst_parameter;
      worst_step = step_judged.worst_step;
    }
    details.insert(details.end(), step_judged.details.begin(), step_judged.details.end());
  }
};

// What the order of a sum explains, relative to the sum: see kNoiseFactor.
double sum_noise(const Capture& capture) {
  int64_t longest = 1;
  for (const Graph& graph : capture.graphs) {
    longest = std::max(longest, static_cast<int64_t>(graph.nodes.size()));  // a loop that adds up
    for (const GraphInput& input : graph.inputs) {
      longest = std::max(longest, element_count(input.type.shape));
    }
    for (const Node& node : graph.nodes) {
      for (const TensorType& out : node.outputs) {
        longest = std::max(longest, element_count(out.shape));
      }
    }
  }
  return std::sqrt(static_cast<double>(longest)) * find_format("fp32").unit_roundoff();
}

// The results that a step is compared with.
struct Reference {
  double loss = 0;
  LossBound loss_bound;
  const Tensors& gradients;
  GateBounds bounds;
};

// Floors for what FP32 does not determine. Empty: every gradient must keep its bound.
struct Floors {
  StepChaos chaos = {};
  double sum_noise = 0;
  std::map<std::string, double> terms = {};  // see terms_of_gradients
};

// The bound on an FP32 loss, see kNoiseFactor and kChaosFactor.
LossBound loss_bound_fp32(double ours, const CapturedVerify& verify, double sum_noise,
                          double chaos) {
  const double here = relative(ours, verify.loss64);
  const double torch = relative(verify.loss32, verify.loss64);
  const double noise = std::max(std::min(here, torch), std::min(std::max(here, torch), sum_noise));
  LossBound bound{kBoundsV3.loss};
  bound.raise(kNoiseFactor, noise, "the error of FP32 against FP64");
  if (relative(ours, verify.loss32) <= bound.value) return bound;
  bound.raise(kChaosFactor, relative(verify.loss32 + chaos, verify.loss32), "what one ulp moves");
  return bound;
}

// The error of PyTorch's own FP32 gradient, as far as the order of a sum explains it.
double torch_noise(const std::string& name, const Tensor& wanted, double norm,
                   const CapturedVerify& verify, double sum_noise) {
  const Tensor* exact = find_named(verify.grads64, name);
  if (sum_noise == 0 || exact == nullptr) return 0;
  const double error = distance(wanted, *exact, find_named(verify.noise, name)).difference;
  return kNoiseFactor * std::min(error, sum_noise * norm);
}

void judge_step(const ComputedStep& ours, const Reference& reference, const CapturedVerify& verify,
                const Floors& floors, Judged& judged) {
  judged.take_loss(relative(ours.loss, reference.loss), reference.loss_bound, verify.step);
  const double u = find_format("fp32").unit_roundoff();
  double largest = 0;
  for (const auto& [name, g] : reference.gradients) {
    largest = std::max(largest, distance(g, g).value);
  }
  for (const auto& [name, wanted] : reference.gradients) {
    const Tensor* g = find_named(ours.gradients, name);
    const Distance d = distance(g != nullptr ? *g : wanted, wanted, find_named(verify.noise, name));
    const double off = g != nullptr ? d.difference : d.reference;  // no gradient counts as zero
    const double by_size = reference.bounds.rtol * d.reference;
    const double absolute = reference.bounds.atol * largest;
    const double* moved = find_named(floors.chaos.gradients, name);
    const double chaotic = moved == nullptr ? 0 : kChaosFactor * *moved;
    const double own = torch_noise(name, wanted, d.reference, verify, floors.sum_noise);
    double bound = std::max({by_size + absolute, chaotic, own});
    const double* terms = find_named(floors.terms, name);
    const double by_terms =
        terms == nullptr ? 0 : kNoiseFactor * std::sqrt(*terms) * u * d.reference;
    const bool is_long = off > bound && by_terms > bound;
    if (is_long) bound = by_terms;
    const double before = judged.gradients.ratio;
    judged.gradients.take(off, bound, fmt::format("{}, step {}", name, verify.step));
    if (judged.gradients.ratio > before || judged.worst_step < 0) {
      judged.worst_parameter = name;
      judged.worst_step = verify.step;
    }
    const bool is_plain = bound == by_size + absolute;
    const bool by_chaos = !is_plain && !is_long && bound == chaotic;
    judged.floor.add({.tensors = 1,
                      .by_floor = is_plain && absolute > by_size,
                      .by_chaos = by_chaos,
                      .elements = d.elements,
                      .noise = d.noise,
                      .by_torch = !is_plain && !by_chaos && !is_long,
                      .by_terms = is_long});
  }
  for (const auto& [name, g] : ours.gradients) {
    if (reference.gradients.contains(name)) continue;
    judged.details.push_back(
        fmt::format("step {}: '{}' has a gradient here and none in PyTorch", verify.step, name));
  }
}

std::string figure_of(const Judged& judged, const Capture& capture) {
  const std::string& floor = judged.loss_bound.floor;
  const std::string noise =
      floor.empty() ? "" : fmt::format(", judged by a floor: {} in {}", floor, judged.losses.where);
  return fmt::format("loss {:.1e} (at most {:.{}e}{}), {}, {}", judged.loss,
                     judged.loss_bound.value, noise.empty() ? 0 : 1, noise,
                     gradients_text(judged.gradients, judged.floor), steps_text(capture));
}

// Of a gate that passed only by what one ulp in every result changes.
std::string undetermined_text(const char* format) {
  return fmt::format(
      "; {} does not determine this any closer: {} times what one ulp in every result changes",
      format, kChaosFactor);
}

constexpr CapturedStepRunner::Moves kNotMoved = {.ulps = 0};

struct Fp32Run {
  ComputedStep step;
  int64_t flips = 0;
  std::string first_difference;
};

// A step from `values`, the captured ones or a twin's; `force`: with PyTorch's own choices at
// kinks.
Fp32Run run_fp32(CapturedStepRunner& runner, const Capture& capture, const CapturedVerify& verify,
                 const Tensors& values, bool force, CapturedStepRunner::Moves moves = kNotMoved) {
  Fp32Run out;
  FirstDifference difference;
  difference.verify = &verify;
  const CapturedStep& step = capture.steps.at(static_cast<size_t>(verify.step));
  const auto visit = [&](size_t micro, const Node& node, ValueStore& values, bool done) {
    if (force && micro < verify.micro.size()) {
      out.flips += force_kinks(node, verify.micro[micro], values, done);
    }
    const auto graph = static_cast<size_t>(step.micro[micro].graph);
    if (done) difference.look(micro, node, values, capture.graphs[graph]);
  };
  out.step = moves.ulps == 0 ? runner.run(step, values, 1, visit)
                             : runner.run_moved(step, values, 1, moves, visit);
  out.first_difference = difference.text;
  return out;
}

bool is_mutated(const Capture& capture, const std::string& buffer) {
  return std::ranges::any_of(capture.graphs, [&](const Graph& graph) {
    return std::ranges::find(graph.mutations, buffer, &Mutation::buffer) != graph.mutations.end();
  });
}

// Computed when first needed, for one step.
struct BufferFloors {
  std::function<const Tensors&()> exact;  // the buffers after the step of the FP64 replay
  std::function<const Chaos&()> chaos;    // how far one ulp of the weights moves them in FP32
};

// Compares every buffer that a graph reads or changes with PyTorch's repetition of the step. If the
// file has a later state of the captured run, also checks that it changed only buffers that a graph
// changes.
struct JudgedBuffers {
  Worst worst;
  FloorShare floor;
  bool any = false;  // some buffer changes
  std::vector<std::string> details;

  void take(const Capture& capture, const CapturedVerify& verify, const CapturedVerify* later,
            const Tensors& ours, const BufferFloors& floors) {
    for (const Graph& graph : capture.graphs) {
      for (const Buffer& buffer : graph.buffers) {
        const Tensor* wanted = find_named(verify.after.values, buffer.name);
        if (wanted == nullptr) continue;
        any = any || is_mutated(capture, buffer.name);
        const bool is_int = wanted->container() == Container::kI32;
        const Distance d = distance(ours.at(buffer.name), *wanted);
        double bound = is_int ? 0 : kBoundBuffer * d.reference;
        const bool by_floor =
            !is_int && d.difference > bound && is_rounding(verify, buffer.name, floors);
        const double own = by_floor ? torch_error(verify, buffer.name) : 0;
        const bool by_torch = own > bound;
        bound = std::max(bound, own);
        const double moved =
            by_floor && d.difference > bound ? kChaosFactor * floors.chaos().at(buffer.name) : 0;
        const bool by_chaos = moved > bound;
        bound = std::max(bound, moved);
        floor.add({.tensors = !is_int,
                   .by_chaos = by_chaos,
                   .elements = is_int ? 0 : d.elements,
                   .by_torch = by_torch && !by_chaos});
        worst.take(d.difference, bound, fmt::format("{}, step {}", buffer.name, verify.step));
        if (later != nullptr) take_later(capture, verify, *later, buffer.name);
      }
    }
  }

 private:
  // kNoiseFactor times the error of PyTorch's own FP32 buffer.
  static double torch_error(const CapturedVerify& verify, const std::string& buffer) {
    return kNoiseFactor *
           distance(verify.after.values.at(buffer), verify.buffers64.at(buffer)).difference;
  }

  // Is the buffer of the FP64 replay PyTorch's? Otherwise, or if PyTorch's was not recorded, its
  // difference in FP32 is not only rounding, and no floor applies.
  bool is_rounding(const CapturedVerify& verify, const std::string& buffer,
                   const BufferFloors& floors) {
    const Tensor* wanted = find_named(verify.buffers64, buffer);
    if (wanted == nullptr) return false;
    const double error = distance(verify.after.values.at(buffer), *wanted).difference;
    const Distance d = distance(floors.exact().at(buffer), *wanted);
    if (d.difference <= kBoundsV1.rtol * d.reference + kExactShare * error) return true;
    details.push_back(fmt::format(
        "buffer '{}', step {}: in FP64 it is {:.1e} from PyTorch's, so its difference in FP32 is "
        "more than rounding",
        buffer, verify.step, d.difference));
    return false;
  }

  void take_later(const Capture& capture, const CapturedVerify& verify, const CapturedVerify& later,
                  const std::string& buffer) {
    const Tensor* before = find_named(verify.before.values, buffer);
    const Tensor* after = find_named(later.before.values, buffer);
    if (before == nullptr || after == nullptr || is_mutated(capture, buffer)) return;
    const double difference = distance(*after, *before).difference;
    if (difference == 0) return;
    any = true;
    worst.take(difference, 0, fmt::format("{}, step {}", buffer, verify.step));
    details.push_back(
        fmt::format("buffer '{}' changed in the captured run between steps {} and {}, but no graph "
                    "changes it: the model's change was not recorded",
                    buffer, verify.step, later.step));
  }
};

Tensors in_fp64(Tensors values) {
  for (auto& [name, value] : values) {
    if (value.container() == Container::kF32) value = value.to(Container::kF64);
  }
  return values;
}

// What central differences say of the worst gradient. Empty: both sides are not there, or the
// gradient is not that of one multiple of the loss.
std::string explain_worst(const Capture& capture, const Judged& judged,
                          CapturedStepRunner& runner) {
  const auto verify = std::ranges::find(capture.verify, judged.worst_step, &CapturedVerify::step);
  if (verify == capture.verify.end()) return "";
  const CapturedStep& step = capture.steps.at(static_cast<size_t>(verify->step));
  const double weight = step.micro.front().loss_mult;
  if (!std::ranges::all_of(step.micro, [&](const auto& m) { return m.loss_mult == weight; }))
    return "";
  const ComputedStep ours = runner.run(step, verify->before.values);
  const std::string& name = judged.worst_parameter;
  const Tensor* replay = find_named(ours.gradients, name);
  const Tensor* torch = find_named(verify->grads64, name);
  if (replay == nullptr || torch == nullptr) return "";
  Tensors values = verify->before.values;
  const double factor = weight * static_cast<double>(step.micro.size());
  const auto loss_at = [&](const Tensor& parameter) {
    values.at(name) = parameter;
    return factor * runner.run(step, values).loss;
  };
  const auto whose = whose_gradient(verify->before.values.at(name), *replay, *torch, loss_at);
  return whose ? whose->text(name, verify->step) : "";
}

}  // namespace

GateResult gate_v1(const Capture& capture) {
  GateResult gate{
      .name = "V1", .subject = "FP64 replay against PyTorch's FP64", .is_required = true};
  if (nothing_to_judge(capture, gate)) return gate;
  const Policy policy = find_policy(kReferenceLane);
  CapturedStepRunner runner(capture, policy, /*is_fp64=*/true);
  for (const CapturedVerify& verify : capture.verify) {
    runner.require_memory(capture.steps.at(static_cast<size_t>(verify.step)));
  }
  Judged judged;
  bool undetermined = false;
  FirstDifference difference;
  for (const CapturedVerify& verify : capture.verify) {
    if (!verify.comparable()) continue;
    difference.verify = &verify;
    const CapturedStep& step = capture.steps.at(static_cast<size_t>(verify.step));
    const ComputedStep ours =
        runner.run(step, verify.before.values, 1,
                   [&](size_t micro, const Node& node, ValueStore& values, bool done) {
                     const auto graph = static_cast<size_t>(step.micro[micro].graph);
                     if (done) difference.look(micro, node, values, capture.graphs[graph]);
                   });
    const auto judge_fp64 = [&](const Floors& floors) {
      LossBound bound{kBoundsV1.loss};
      bound.raise(kChaosFactor, relative(verify.loss64 + floors.chaos.loss, verify.loss64),
                  "what one ulp moves");
      Judged out;
      judge_step(ours, {verify.loss64, bound, verify.grads64, kBoundsV1}, verify, floors, out);
      return out;
    };
    Judged of_step = judge_fp64({});
    if (!of_step.ok()) {
      const auto run_twin = [&](const Tensors& twin) { return runner.run(step, twin); };
      const auto run_moved = [&](uint64_t seed) {
        return runner.run_moved(step, verify.before.values, 1, {.signs = seed});
      };
      Floors moved;
      moved.chaos = step_chaos(capture.graphs.front(), in_fp64(verify.before.values), ours,
                               verify.noise, run_twin);
      Judged again = judge_fp64(moved);
      if (!again.ok()) {
        moved.chaos = with_moved_results(moved.chaos, ours, verify.noise, run_moved);
        again = judge_fp64(moved);
        undetermined = undetermined || again.ok();
      }
      if (again.ok()) of_step = again;
    }
    judged.add(of_step, verify.step);
  }
  gate.figure = figure_of(judged, capture);
  if (undetermined) gate.figure += undetermined_text("FP64");
  gate.floor = judged.floor;
  gate.status = judged.ok() ? GateStatus::kPass : GateStatus::kFail;
  if (gate.status == GateStatus::kPass) return gate;
  gate.details = judged.details;
  gate.details.push_back(difference.text.empty()
                             ? "no forward node differs by more than FP32's rounding"
                             : difference.text);
  if (judged.losses.ratio > 1 || judged.gradients.ratio <= 1) return gate;
  if (const std::string whose = explain_worst(capture, judged, runner); !whose.empty()) {
    gate.details.push_back(whose);
  }
  return gate;
}

GateResult gate_v3(const Capture& capture, GateResult& v4) {
  GateResult gate{.name = "V3", .subject = "FP32 replay against PyTorch's FP32"};
  v4 = {.name = "V4", .subject = "buffers after a step"};
  if (nothing_to_judge(capture, gate)) {
    v4.status = gate.status;
    v4.figure = gate.figure;
    return gate;
  }
  const Policy policy = find_policy(kReferenceLane);
  CapturedStepRunner runner(capture, policy, /*is_fp64=*/false);
  Judged all;
  JudgedBuffers buffers;
  bool ok = true, undetermined = false;
  int64_t flips = 0;
  const double order_noise = sum_noise(capture);
  Floors by_terms;
  by_terms.terms = terms_of_gradients(capture);
  CapturedStepRunner exact_runner(capture, policy, /*is_fp64=*/true);
  for (size_t number = 0; number < capture.verify.size(); ++number) {
    const CapturedVerify& verify = capture.verify[number];
    if (!verify.comparable()) continue;
    const Tensors& values = verify.before.values;
    const Fp32Run run = run_fp32(runner, capture, verify, values, /*force=*/false);
    const auto judge_fp32 = [&](const ComputedStep& step, const Floors& floors) {
      Judged out;
      const LossBound loss_bound =
          loss_bound_fp32(step.loss, verify, order_noise, floors.chaos.loss);
      judge_step(step, {verify.loss32, loss_bound, verify.grads32, kBoundsV3}, verify, floors, out);
      return out;
    };
    std::optional<ComputedStep> exact;
    const auto exact_buffers = [&]() -> const Tensors& {
      const CapturedStep& step = capture.steps.at(static_cast<size_t>(verify.step));
      if (!exact) exact = exact_runner.run(step, values);
      return exact->buffers;
    };
    std::optional<Chaos> moved;
    const auto moved_buffers = [&]() -> const Chaos& {
      const auto run_moved = [&](const Tensors& twin) {
        return run_fp32(runner, capture, verify, twin, /*force=*/false).step;
      };
      if (!moved) {
        moved = buffer_chaos(capture.graphs.front(), values, run.step.buffers, run_moved);
      }
      return *moved;
    };
    Judged judged = judge_fp32(run.step, by_terms);
    const bool is_last = number + 1 == capture.verify.size();
    buffers.take(capture, verify, is_last ? nullptr : &capture.verify[number + 1], run.step.buffers,
                 {exact_buffers, moved_buffers});
    if (!judged.ok()) {
      const Fp32Run forced = run_fp32(runner, capture, verify, values, /*force=*/true);
      Judged again = judge_fp32(forced.step, by_terms);
      if (!again.ok()) {
        const auto run_forced = [&](const Tensors& moved) {
          return run_fp32(runner, capture, verify, moved, /*force=*/true).step;
        };
        Floors floors = by_terms;
        floors.sum_noise = order_noise;
        floors.chaos =
            step_chaos(capture.graphs.front(), values, forced.step, verify.noise, run_forced);
        again = judge_fp32(forced.step, floors);
        if (!again.ok()) {
          const auto run_moved = [&](uint64_t seed) {
            return run_fp32(runner, capture, verify, values, /*force=*/true, {.signs = seed}).step;
          };
          floors.chaos = with_moved_results(floors.chaos, forced.step, verify.noise, run_moved);
          again = judge_fp32(forced.step, floors);
          undetermined = undetermined || again.ok();
        }
      }
      if (again.ok()) {
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
    all.add(judged, verify.step);
  }
  gate.figure = figure_of(all, capture);
  gate.floor = all.floor;
  if (flips > 0) gate.figure += fmt::format("; {} kink flip{}", flips, flips == 1 ? "" : "s");
  if (undetermined) gate.figure += undetermined_text("FP32");
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
  v4.floor = buffers.floor;
  v4.figure =
      fmt::format("{:.2g} of the bound {:.0e} (worst {}); counts exact", buffers.worst.ratio,
                  kBoundBuffer, worst_text(buffers.worst.where, buffers.floor));
  v4.details = std::move(buffers.details);
  return gate;
}

}  // namespace lockstep

// See other_sums.h.
#include "src/execute/other_sums.h"

#include <cmath>

namespace lockstep {
namespace {

// The op's outputs with all sums in `accumulator`, whose format is the container's.
std::vector<Tensor> run_again(const OpDef& op, const OpCall& call, Container container,
                              const Accumulator& accumulator) {
  std::vector<Tensor> operands, results;
  std::vector<const Tensor*> inputs;
  std::vector<Tensor*> outputs;
  operands.reserve(call.inputs.size());
  for (const Tensor* input : call.inputs) {
    const bool is_float = input->container() == Container::kF32;
    inputs.push_back(is_float && container != Container::kF32
                         ? &operands.emplace_back(input->to(container))
                         : input);
  }
  for (const Tensor* output : call.outputs) {
    const bool is_float = output->container() == Container::kF32;
    results.emplace_back(output->shape(), is_float ? container : output->container());
  }
  for (Tensor& result : results) outputs.push_back(&result);
  OpCall again{.node = call.node,
               .inputs = inputs,
               .outputs = outputs,
               .kernels = call.kernels,
               .gemm_accumulator = accumulator,
               .reduce_accumulator = accumulator};
  again.random = call.random;
  again.inner = call.inner;
  again.inner_formats = call.inner_formats;
  again.cpu_threads = call.cpu_threads;
  again.flash_kernel = call.flash_kernel;
  op.run(again);
  return results;
}

AccumulatorHealth health_of(const Tensor& computed, const Tensor& in_fp32, const Tensor& exact) {
  AccumulatorHealth health;
  const auto sums = computed.as<float>(), fp32 = in_fp32.as<float>();
  const auto right = exact.as<double>();
  health.samples = sums.size();
  for (size_t i = 0; i < sums.size(); ++i) {
    const double sum = static_cast<double>(sums[i]), err = sum - right[i];
    const double of_fp32 = std::abs(static_cast<double>(fp32[i]) - right[i]);
    if (!std::isfinite(err) || !(of_fp32 <= kFp32Share * std::abs(right[i]))) continue;
    health.compared += 1;
    health.err_sq += err * err;
    health.exact_sq += right[i] * right[i];
  }
  return health;
}

}  // namespace

bool may_sum_narrowly(const Instruction& op, const Node& node) {
  return op.kind == InstructionKind::kOp && !find_op(node.op).sums.of_products &&
         !contains(*op.reduce_accumulator->format, find_format("fp32"));
}

std::vector<AccumulatorHealth> other_sums(const OpDef& op, const OpCall& call) {
  const std::vector<Tensor> in_fp32 =
      run_again(op, call, Container::kF32, find_accumulator("fp32_fused"));
  const std::vector<Tensor> exact =
      run_again(op, call, Container::kF64, find_accumulator("fp64_fused"));
  std::vector<AccumulatorHealth> health(call.outputs.size());
  for (size_t k = 0; k < health.size(); ++k) {
    if (exact[k].container() != Container::kF64) continue;
    health[k] = health_of(*call.outputs[k], in_fp32[k], exact[k]);
  }
  return health;
}

}  // namespace lockstep

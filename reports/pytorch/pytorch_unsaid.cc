// One block per table of the policy file.
#include "reports/pytorch/pytorch_unsaid.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <variant>

#include "src/core/text.h"

namespace lockstep {
namespace {

void add_storage(const Policy& p, const Policy& torch, std::vector<std::string>& unsaid) {
  if (p.formats_as_captured) {
    unsaid.push_back(
        "Weights, buffers and inputs keep the formats that the captured model gave them: convert "
        "the model itself.");
  } else {
    std::vector<std::string> stored;
    if (p.weight != torch.weight) stored.push_back("weights in " + p.weight->name);
    if (p.buffer != torch.buffer) stored.push_back("buffers in " + p.buffer->name);
    if (p.input != torch.input) stored.push_back("inputs in " + p.input->name);
    if (!stored.empty()) {
      unsaid.push_back(
          fmt::format("Stored are {}: convert the model and its inputs{}.", join(stored, ", "),
                      p.weight != torch.weight ? "; autocast expects FP32 weights" : ""));
    }
  }
  if (!p.keep_fp32.empty()) {
    unsaid.push_back(
        fmt::format("The parameters of these ops stay in FP32: {}. Convert the others.",
                    join(p.keep_fp32, ", ")));
  }
  if (p.rounding != torch.rounding) {
    unsaid.push_back(fmt::format("Casts and results are rounded to {}; torch rounds to {}.",
                                 to_string(p.rounding), to_string(torch.rounding)));
  }
  if (p.model_input != nullptr) {
    unsaid.push_back(fmt::format(
        "The model's inputs are cast to {}: cast them in the training loop.", p.model_input->name));
  }
  if (p.model_output != nullptr) {
    unsaid.push_back(
        fmt::format("The model's outputs are cast to {} before the loss: cast them in "
                    "the training loop.",
                    p.model_output->name));
  }
}

void add_sums(const Policy& p, const Policy& torch, std::vector<std::string>& unsaid) {
  if (p.hardware != nullptr) {
    unsaid.push_back(fmt::format(
        "Products are summed as on {}: torch sums as the device that runs it.", p.hardware->name));
  } else if (p.gemm_accumulator != torch.gemm_accumulator) {
    unsaid.push_back(fmt::format(
        "Products are summed in the accumulator {}: torch leaves the sum to the device.",
        p.gemm_accumulator->name));
  }
  for (const ProductInfo& info : products()) {
    const Accumulator* own = p.scaling.of(info.product).accumulator;
    if (own == nullptr) continue;
    unsaid.push_back(
        fmt::format("Scaled factors of {} are summed in the accumulator {}: the library and the "
                    "device decide that.",
                    info.name, own->name));
  }
  if (p.cuda != torch.cuda) {
    unsaid.push_back(
        "[cuda] says how cuBLAS may split and round sums: set "
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction and its BF16 "
        "counterpart, (False, False) without split-K.");
  }
  if (p.reduce_accumulator != torch.reduce_accumulator) {
    unsaid.push_back(fmt::format(
        "Other sums are formed in the accumulator {}: torch has its own in each kernel.",
        p.reduce_accumulator->name));
  }
  // torch on CUDA forms them so.
  if (p.indexed_sums != torch.indexed_sums && p.indexed_sums != IndexedSums::kTorchCuda) {
    unsaid.push_back(
        p.indexed_sums == IndexedSums::kTorchCpu
            ? "Sums into places that an index names are those of torch on the CPU: it forms others "
              "on CUDA."
            : "Sums into places that an index names are formed in the accumulator of other sums: "
              "torch forms them as its kernels on the device do.");
  }
  if (p.rounds_dropout_scale != torch.rounds_dropout_scale ||
      p.flash_kernel != torch.flash_kernel || p.rounds_log_softmax != torch.rounds_log_softmax ||
      p.recurrent_cells != torch.recurrent_cells || p.cpu_threads != torch.cpu_threads ||
      (torch.splits_cross_entropy && !p.splits_cross_entropy) ||
      p.rounds_before_conv_bias != torch.rounds_before_conv_bias) {
    unsaid.push_back(
        "Roundings inside dropout, softmax, cross_entropy, convolutions, attention or recurrent "
        "layers follow the policy's tables: torch rounds as its kernels on the device do.");
  }
}

void add_update(const Policy& p, const Policy& torch, std::vector<std::string>& unsaid) {
  if (p.master_weights) {
    unsaid.push_back(fmt::format(
        "The optimizer updates {} masters of the weights: keep such copies in the training loop.",
        p.master->name));
  }
  if (p.optimizer_state != torch.optimizer_state) {
    unsaid.push_back(fmt::format(
        "The optimizer's state is kept in {}: torch keeps it in the format of the weights.",
        p.optimizer_state->name));
  }
  if (p.optimizer_arithmetic != torch.optimizer_arithmetic) {
    unsaid.push_back(
        fmt::format("The optimizer computes in {}: torch computes in the format of the weights.",
                    p.optimizer_arithmetic->name));
  }
  // BF16: FP32's range in fewer bits.
  const Format& fp32 = find_format("fp32");
  const bool is_bf16 = p.weight->emax == fp32.emax && !p.weight->is_fp32() && !p.master_weights;
  switch (p.update_rounding) {
    case UpdateRounding::kStorage:
    case UpdateRounding::kNearestEven:
      break;
    case UpdateRounding::kStochastic:
      unsaid.push_back(fmt::format(
          "Weights are rounded stochastically after each update: torch's optimizers "
          "round to nearest even{}.",
          is_bf16
              ? "; torchao.optim._AdamW(..., bf16_stochastic_round=True) of torchao 0.18 rounds "
                "BF16 weights so"
              : ""));
      break;
    case UpdateRounding::kKahan:
      unsaid.push_back(fmt::format(
          "Updates are added with a compensation for lost parts (Kahan): torch's "
          "optimizers add them plainly{}.",
          is_bf16 ? "; optimi.AdamW(..., kahan_sum=True) of torch-optimi 0.3 compensates" : ""));
      break;
  }
  if (p.gradient_sum != torch.gradient_sum) {
    unsaid.push_back(fmt::format(
        "Gradients of micro-batches add up in {}: PyTorch adds them up in the parameter's format.",
        p.gradient_sum->name));
  }
  AllReduce reduce = p.all_reduce;
  reduce.workers = torch.all_reduce.workers;  // the launcher says how many
  if (reduce != torch.all_reduce) {
    unsaid.push_back(
        "Gradients of several workers are combined by the policy's [all_reduce]: choose the "
        "communication hook of DistributedDataParallel yourself.");
  }
}

constexpr std::string_view kGradScalerArguments[] = {"init_scale", "growth_factor",
                                                     "backoff_factor", "growth_interval"};

double number_of(const LossScaleSpec& spec, const LossScaleKey& key) {
  return std::visit([&](auto member) { return static_cast<double>(spec.*member); }, key.member);
}

}  // namespace

void add_unsaid_numerics(const Policy& policy, const Policy& torch,
                         std::vector<std::string>& unsaid) {
  add_storage(policy, torch, unsaid);
  add_sums(policy, torch, unsaid);
  add_update(policy, torch, unsaid);
}

void add_unsaid_loss_scale(const Policy& policy, std::vector<std::string>& unsaid) {
  const LossScaler& scaler = find_loss_scaler(policy.loss_scale.kind);
  const LossScaleUse& use = policy.loss_scale_use;
  if (!scaler.scales) return;
  if (scaler.check == LossScaler::Check::kNone) {
    unsaid.push_back(
        "Gradients are not checked, so an overflow reaches the weights: a GradScaler "
        "checks them and skips the step.");
  }
  const bool is_static = !scaler.knows("growth_interval");
  if (!is_static && scaler.name != kGradScaler) {
    unsaid.push_back(
        fmt::format("The loss scale follows the rule of {} ({}): a GradScaler with its "
                    "numbers follows torch's rule.",
                    scaler.name, scaler.help));
  }
  const LossScaleSpec no_limits;
  for (const LossScaleKey& key : loss_scale_keys()) {
    const double value = number_of(policy.loss_scale, key);
    const bool is_argument = std::ranges::count(kGradScalerArguments, key.name) > 0;
    if (is_argument || !scaler.knows(key.name) || value == number_of(no_limits, key)) continue;
    unsaid.push_back(fmt::format("{} = {:g} of the loss scale: a GradScaler has no such argument.",
                                 key.name, value));
  }
  if (use.replay) {
    unsaid.push_back(
        "A batch that overflows is repeated with the next scale: a GradScaler leaves it "
        "out.");
  }
  if (use.clip_before_unscale) {
    unsaid.push_back(
        "Gradients are clipped while they are scaled: leave out scaler.unscale_() "
        "before clipping to repeat this.");
  }
  if (use.skip_by_group) {
    unsaid.push_back(
        "Only the groups of parameters that overflowed skip a step: use one optimizer "
        "per group.");
  }
  if (use.per_loss.value_or(scaler.per_loss)) {
    unsaid.push_back(
        "Every loss with a backward pass of its own has its own scale: use one "
        "GradScaler per loss.");
  }
}

}  // namespace lockstep

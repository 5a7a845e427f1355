// See gpu_cost.h.
#include "analysis/cost/gpu_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "src/core/error.h"
#include "src/graph/op.h"
#include "src/policy/policy.h"

namespace lockstep {
namespace {

constexpr std::array kGpus = {
    Gpu{.name = "v100",
        .help = "NVIDIA V100 SXM2",
        .source = "NVIDIA V100 datasheet (2020)",
        .fp32 = 15.7,
        .tf32 = 0,
        .fp16 = 125,
        .bf16 = 0,
        .fp8 = 0,
        .mxfp8 = 0,
        .nvfp4 = 0,
        .bandwidth = 900},
    Gpu{.name = "a100",
        .help = "NVIDIA A100 SXM, 80 GB",
        .source = "NVIDIA A100 datasheet (2021)",
        .fp32 = 19.5,
        .tf32 = 156,
        .fp16 = 312,
        .bf16 = 312,
        .fp8 = 0,
        .mxfp8 = 0,
        .nvfp4 = 0,
        .bandwidth = 2039},
    Gpu{.name = "l40s",
        .help = "NVIDIA L40S",
        .source = "NVIDIA L40S datasheet (2023)",
        .fp32 = 91.6,
        .tf32 = 183,
        .fp16 = 362,
        .bf16 = 362,
        .fp8 = 733,
        .mxfp8 = 0,
        .nvfp4 = 0,
        .bandwidth = 864},
    Gpu{.name = "h100",
        .help = "NVIDIA H100 SXM5",
        .source = "NVIDIA H100 datasheet (2023), half of the rates with sparsity",
        .fp32 = 67,
        .tf32 = 495,
        .fp16 = 989,
        .bf16 = 989,
        .fp8 = 1979,
        .mxfp8 = 0,
        .nvfp4 = 0,
        .bandwidth = 3350},
    Gpu{.name = "b200",
        .help = "NVIDIA B200, one of eight of an HGX B200",
        .source = "NVIDIA HGX datasheet (2024), an eighth, and half of the rates with sparsity",
        .fp32 = 75,
        .tf32 = 1125,
        .fp16 = 2250,
        .bf16 = 2250,
        .fp8 = 4500,
        .mxfp8 = 4500,
        .nvfp4 = 9000,
        .bandwidth = 7700},
};

struct Rate {
  std::string_view format;
  double Gpu::*rate;
};
constexpr std::array kRates = {Rate{"fp32", &Gpu::fp32},  Rate{"tf32", &Gpu::tf32},
                               Rate{"fp16", &Gpu::fp16},  Rate{"bf16", &Gpu::bf16},
                               Rate{"fp8", &Gpu::fp8},    Rate{"mxfp8", &Gpu::mxfp8},
                               Rate{"nvfp4", &Gpu::nvfp4}};

constexpr double kTera = 1e12;
constexpr int kBitsPerByte = 8, kHalfBits = 16, kByteBits = 8;

class Pricing {
 public:
  Pricing(const Graph& step, const Program& program, const Gpu& gpu)
      : step_(step), program_(program), gpu_(gpu) {
    for (const ProductFact& fact : product_facts(step)) facts_[fact.node].push_back(fact);
  }

  StepCost price() {
    for (const Instruction& instruction : program_.instructions) {
      if (instruction.kind == InstructionKind::kObserve) continue;
      const Node& node = step_.nodes[static_cast<size_t>(instruction.node)];
      double seconds = 0;
      if (instruction.kind == InstructionKind::kCast) {
        seconds = traffic(instruction, find_op(node.op));
      } else if (!find_op(node.op).elements.is_view) {
        seconds = std::max(traffic(instruction, find_op(node.op)), arithmetic(instruction, node));
      }
      cost_.by_layer[layer_of(step_, node)] += seconds;
      cost_.seconds += seconds;
    }
    return cost_;
  }

 private:
  double bytes(int value, int integer_bytes) const {
    const ProgramValue& v = program_.values[static_cast<size_t>(value)];
    double bits = integer_bytes * kBitsPerByte;
    if (v.scaled_cast >= 0) {
      const FactorFormat& to = program_.scaled_casts[static_cast<size_t>(v.scaled_cast)].to;
      bits = to.block != nullptr ? to.block->bits_per_element() : to.element->storage_bits();
    } else if (v.format != nullptr) {
      // TF32 is stored as FP32.
      bits = v.format->is_tf32() ? 2 * kHalfBits : v.format->storage_bits();
    }
    return static_cast<double>(element_count(v.type.shape)) * bits / kBitsPerByte;
  }

  double traffic(const Instruction& instruction, const OpDef& op) const {
    double sum = 0;
    for (const int v : instruction.inputs) sum += bytes(v, op.formats.integer_bytes);
    for (const int v : instruction.outputs) sum += bytes(v, op.formats.integer_bytes);
    return sum / (gpu_.bandwidth * kGiga);
  }

  struct Unit {
    double Gpu::*rate = nullptr;
    int bits = 0;  // of a factor
  };
  static Unit unit_of(const FactorFormat& to) {
    if (to.block == nullptr) return {&Gpu::fp8, to.element->storage_bits()};
    const int bits = static_cast<int>(to.block->bits_per_element());
    if (bits < kByteBits) return {&Gpu::nvfp4, bits};
    // Longer blocks than the unit for them takes: the FP8 unit, scales are applied to its sums.
    const bool is_micro = to.block->block_size <= find_block_format("mxfp8_e4m3").block_size;
    return {is_micro ? &Gpu::mxfp8 : &Gpu::fp8, bits};
  }
  static Unit unit_of(const Format& format) {
    const int bits = format.storage_bits();
    if (format.is_tf32()) return {&Gpu::tf32, bits};
    if (bits <= kByteBits) return {&Gpu::fp8, bits};
    if (bits > kHalfBits) return {&Gpu::fp32, bits};
    const bool has_range_of_fp32 = format.emax == find_format(kReferenceLane).emax;
    return {has_range_of_fp32 ? &Gpu::bf16 : &Gpu::fp16, bits};
  }

  // That takes the widest of the factors.
  Unit unit_of(const Instruction& instruction) const {
    Unit widest;
    for (size_t i = 0; i < instruction.inputs.size(); ++i) {
      const ProgramValue& v = program_.values[static_cast<size_t>(instruction.inputs[i])];
      const Format* format =
          i < instruction.factor_formats.size() ? instruction.factor_formats[i] : nullptr;
      Unit here;
      if (v.scaled_cast >= 0) {
        here = unit_of(program_.scaled_casts[static_cast<size_t>(v.scaled_cast)].to);
      } else if (format != nullptr) {
        here = unit_of(*format);
      }
      if (here.bits > widest.bits) widest = here;
    }
    return widest;
  }

  double arithmetic(const Instruction& instruction, const Node& node) {
    const auto facts = facts_.find(node.id);
    if (facts == facts_.end()) return 0;
    const Unit unit = unit_of(instruction);
    const bool is_wide = unit.bits == 0 || unit.rate == &Gpu::fp32;
    const bool is_narrow = !is_wide && unit.bits <= kByteBits;
    double seconds = 0;
    for (const ProductFact& fact : facts->second) {
      const bool is_aligned =
          is_wide || (is_narrow ? fact.unaligned_fp8 : fact.unaligned_16bit).empty();
      double rate = is_wide ? gpu_.fp32 : gpu_.*unit.rate;
      if (is_narrow && (rate == 0 || !is_aligned)) rate = std::max(gpu_.bf16, gpu_.fp16);
      if (rate == 0) rate = gpu_.fp32;
      if (!is_aligned) rate = std::max(rate * kUnalignedRate, gpu_.fp32);
      seconds += 2 * static_cast<double>(fact.multiply_adds) / (rate * kTera);
    }
    return seconds;
  }

  const Graph& step_;
  const Program& program_;
  const Gpu& gpu_;
  std::map<std::string, std::vector<ProductFact>> facts_;  // by node
  StepCost cost_;
};

}  // namespace

std::span<const Gpu> gpus() {
  return kGpus;
}

const Gpu& find_gpu(std::string_view name) {
  std::vector<std::string> known;
  for (const Gpu& gpu : kGpus) {
    if (gpu.name == name) return gpu;
    known.emplace_back(gpu.name);
  }
  throw InputError(fmt::format("unknown GPU {}", name), did_you_mean(std::string(name), known));
}

double peak_rate(const Gpu& gpu, std::string_view format) {
  const auto* const row = std::ranges::find(kRates, format, &Rate::format);
  return row == kRates.end() ? 0 : gpu.*row->rate;
}

std::vector<std::string_view> rated_formats() {
  std::vector<std::string_view> formats;
  for (const Rate& rate : kRates) formats.push_back(rate.format);
  return formats;
}

StepCost step_cost(const Graph& step, const Program& program, const MemoryFacts& memory,
                   const Gpu& gpu) {
  StepCost cost = Pricing(step, program, gpu).price();
  const int64_t kept =
      memory.weights + memory.master_weights + memory.optimizer_state + memory.kahan_terms;
  // Read and written; gradients are read.
  cost.seconds += static_cast<double>(2 * kept + memory.gradients) / (gpu.bandwidth * kGiga);
  return cost;
}

int64_t total_bytes(const MemoryFacts& memory) {
  return memory.weights + memory.master_weights + memory.gradients + memory.optimizer_state +
         memory.kahan_terms + memory.activations;
}

}  // namespace lockstep

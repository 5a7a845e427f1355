// A policy that may be recommended: autocast in one 16-bit format (or TF32), layers that stay in
// FP32, a loss scale; linear layers in a narrower format; narrower optimizer state, weights, sums.
#pragma once

#include <toml++/toml.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/ranges/scale_interval.h"
#include "src/policy/policy.h"

namespace lockstep {

// Where a candidate starts: every layer in this format, as the preset has it.
struct BaseFormat {
  std::string_view format, preset;
};
std::span<const BaseFormat> base_formats();  // fp16, bf16, tf32
// Whether a name in --formats means TF32, or a format of 16 bits.
bool is_tf32(const std::string& format);
bool has_16_bits(const std::string& format);

// A recipe for linear layers on top of a base: the [scaling] table of a preset.
struct NarrowFormat {
  std::string_view format, preset, unit;  // unit: of a GPU, a rated format (gpu_cost.h)
};
std::span<const NarrowFormat> narrow_formats();                   // fp8, fp8-rowwise, ...
const NarrowFormat* find_narrow_format(std::string_view format);  // null: none of these
toml::table scaling_of(const NarrowFormat& narrow);               // the preset's [scaling]

// What else may be narrower, as tables that are added to a policy.
struct MemoryChoice {
  std::string_view name, subject, help;  // subject: "state", "weights" or "sums"
  std::string_view toml;                 // "{}" is replaced by the base's format
  // The only base format, or narrow format, that it applies to; "": any base of 16 bits.
  std::string_view only = {};
};
std::span<const MemoryChoice> memory_choices();
const MemoryChoice& find_memory_choice(std::string_view name);

// A dynamic scale moves by this factor of 2; an interval must hold both values.
inline constexpr int kDynamicOctaves = 1;

struct ScaleChoice {
  bool scales = false;   // false: the base has no scaler, and none is needed
  bool dynamic = false;  // the base's own scaler, which may start elsewhere
  double start = 1;
  bool operator==(const ScaleChoice&) const = default;
};
// The base's dynamic scaler where the interval leaves it room to move, else a static scale. A start
// that fits stays; another becomes the nearest that does.
ScaleChoice choose_scaler(const RangeTable& ranges, const Policy& base);
ScaleChoice static_scaler(const RangeTable& ranges);

// A layer that is excepted from a format.
struct KeptLayer {
  std::string layer, reason;
  bool operator==(const KeptLayer&) const = default;
};

struct Candidate {
  std::string lane = {};             // a preset's name, or one that ends in ".toml"
  std::string format = {};           // of the base
  std::vector<KeptLayer> fp32 = {};  // layers
  ScaleChoice scale = {};
  std::string narrow = {};                 // of linear layers: "", or a row of narrow_formats()
  std::vector<KeptLayer> not_narrow = {};  // linear layers that stay in `format`
  // Globs: linear layers that are narrow, all others stay; empty: all are.
  std::vector<std::string> only_narrow = {};
  bool tf32 = false;                     // products of FP32 factors in TF32
  std::vector<std::string> memory = {};  // rows of memory_choices()
  std::string toml = {};                 // of a lane that ends in ".toml"

  bool is_preset() const { return toml.empty(); }
};

// The preset of a base format. Throws: InputError: no such format.
Policy autocast_policy(const std::string& format);
Candidate plain_autocast(const std::string& format);
Policy policy_of(const Candidate& candidate);
// The candidate as a policy file; plain autocast becomes one that only extends the preset.
std::string policy_text(const Candidate& candidate);
// Completes `candidate` (lane and toml) under this name. `evidence`, `about_scale`: comments at the
// top and before the loss scale. Throws: InputError: a layer whose name is a pattern.
Candidate make_candidate(const std::string& name, Candidate candidate, const std::string& evidence,
                         const std::string& about_scale);
// Throws: InputError: the layer's name is a pattern.
void require_literal(const std::string& layer);
// "Feasible for all layers below: 2^-9 .. 2^15; bn1 needs the lower end; fc3 sets the upper end."
std::string interval_sentence(const RangeTable& ranges);

// The layers of the table that must not use its format.
std::vector<KeptLayer> layers_out_of_range(const RangeTable& ranges);

// `layers`, then those of `more` that are not among them.
std::vector<KeptLayer> joined(std::vector<KeptLayer> layers, const std::vector<KeptLayer>& more);
bool has_layer(const std::vector<KeptLayer>& layers, std::string_view layer);

}  // namespace lockstep

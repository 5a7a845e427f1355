// A policy that may be recommended: autocast in one low-precision format, layers that stay in FP32,
// a loss scale.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/recommend/scale_interval.h"
#include "src/policy/policy.h"

namespace lockstep {

// A dynamic scale moves by this factor of 2; an interval must hold both values.
inline constexpr int kDynamicOctaves = 1;

struct ScaleChoice {
  bool scales = false;   // false: the base has no scaler, and none is needed
  bool dynamic = false;  // the base's own scaler, which may start elsewhere
  double start = 1;
};
// The base's dynamic scaler where the interval leaves it room to move, else a static scale. A start
// that fits stays; another becomes the nearest that does.
ScaleChoice choose_scaler(const RangeTable& ranges, const Policy& base);
ScaleChoice static_scaler(const RangeTable& ranges);

struct LayerInFp32 {
  std::string layer, reason;
  bool operator==(const LayerInFp32&) const = default;
};

struct Candidate {
  std::string lane;    // a preset's name, or one that ends in ".toml"
  std::string format;  // "fp16", "bf16"
  std::vector<LayerInFp32> fp32;
  ScaleChoice scale;
  std::string toml;  // of a lane that ends in ".toml"

  bool is_preset() const { return toml.empty(); }
};

// The preset of autocast in `format`. Throws: InputError: no such preset.
Policy autocast_policy(const std::string& format);
Candidate plain_autocast(const std::string& format);
// The candidate as a policy file; plain autocast becomes one that only extends the preset.
std::string policy_text(const Candidate& candidate);
// `evidence`, `about_scale`: comments at the top and before the loss scale.
Candidate make_candidate(const std::string& name, const std::string& format,
                         std::vector<LayerInFp32> fp32, const ScaleChoice& scale,
                         const std::string& evidence, const std::string& about_scale);
// "Feasible for all layers below: 2^-9 .. 2^15; bn1 needs the lower end; fc3 sets the upper end."
std::string interval_sentence(const RangeTable& ranges);

// The layers of the table that must not use its format.
std::vector<LayerInFp32> layers_out_of_range(const RangeTable& ranges);

}  // namespace lockstep

// The Python functions of the emitted module that only some recipes need: TF32, scaled factors.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/pytorch/pytorch_words.h"

namespace lockstep {

// A template's parts in @...@ and what replaces them.
using Parts = std::vector<std::pair<std::string_view, std::string>>;
std::string filled(std::string_view text, const Parts& parts);

// Layers of torchao or Transformer Engine instead of nn.Linear.
std::string scaled_body(const ScaledLinears& scaled);
// TF32 switched on or off around some layers, forward and backward.
std::string_view tf32_body();

}  // namespace lockstep

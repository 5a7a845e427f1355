// The functions of the emitted module: its text after the docstring and the constants.
#pragma once

#include <string>
#include <string_view>

#include "reports/pytorch/pytorch_words.h"

namespace lockstep {

std::string pytorch_body(const PytorchRecipe& recipe);
// The library that apply() uses by default: "torchao" or "transformer_engine".
std::string_view first_library(const ScaledLinears& scaled);

}  // namespace lockstep

// The imports, facts and functions of the emitted module, from templates/amp.py: a Python module
// with everything that a recipe can need, in regions from `# <name>` to `# </name>`.
#pragma once

#include <string>

#include "reports/pytorch/pytorch_words.h"

namespace lockstep {

// The regions that the recipe needs; `facts`, its constants, in place of the template's samples.
std::string pytorch_body(const PytorchRecipe& recipe, const std::string& facts);

}  // namespace lockstep

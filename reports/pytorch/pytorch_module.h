// The text of amp.py: a recipe as a Python module that needs torch and not Lockstep.
// Names from graphs and files stand in string literals, so that nothing in them is ever run. The
// module replaces `forward` of each listed layer by a functools.partial, which can be copied and
// pickled as a closure cannot. An interrupt between two hooks would leave autocast's nesting open.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/pytorch/pytorch_recipe.h"

namespace lockstep {

// apply(model), autocast(device_type), scaler(device), callbacks for two Trainers; `unsaid` goes
// into the docstring.
std::string pytorch_module(const PytorchRecipe& recipe, const std::vector<std::string>& unsaid);

// "import amp", "import mine as amp", or a call of importlib for what is not a Python name.
std::string import_line(std::string_view name);

// Whether `import name` is Python.
bool is_python_name(std::string_view name);

// Words in lines of at most 100 columns; `first` begins the first line, `rest` all others.
std::string wrapped(std::string_view text, const std::string& first, const std::string& rest);

// A Python string literal whose value is `text`, in one line of printable characters. Bytes that
// are not UTF-8 mean the character of the same number.
std::string python_string(std::string_view text);

}  // namespace lockstep

// See pytorch_casts.h.
#include "reports/pytorch/pytorch_casts.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/pytorch/pytorch_module.h"
#include "reports/pytorch/torch_dtype.h"
#include "src/core/text.h"
#include "src/graph/op_text.h"

namespace lockstep {
namespace {

std::string method_of(const Format& format) {
  return format.is_fp32() ? ".float()" : fmt::format(".to({})", torch_dtype(format.name));
}

// "x.float()", or "a, b.float()" of several operands.
std::string arguments_of(const std::vector<const Format*>& operands) {
  std::vector<std::string> words;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string name =
        operands.size() == 1 ? "x" : std::string(1, static_cast<char>('a' + i % 23));
    words.push_back(name + (operands[i] == nullptr ? "" : method_of(*operands[i])));
  }
  return join(words, ", ");
}

}  // namespace

std::vector<std::string> cast_lines(const Graph& step, const std::vector<MovedCasts>& casts) {
  std::vector<std::string> lines;
  const auto add = [&](std::string line) {
    if (std::ranges::count(lines, line) == 0) lines.push_back(std::move(line));
  };
  for (const MovedCasts& one : casts) {
    for (const std::string& path : one.modules) {
      add(fmt::format("model.get_submodule({}){}", python_string(path),
                      method_of(*one.of_modules)));
    }
    if (std::ranges::all_of(one.operands, [](auto* to) { return to == nullptr; })) continue;
    const std::string line =
        one.node->source_line.empty() ? "" : fmt::format(" ({})", one.node->source_line);
    add(fmt::format("x = op({})  # {}{}", arguments_of(one.operands),
                    op_text(layer_of(step, *one.node), one.node->op), line));
  }
  return lines;
}

}  // namespace lockstep

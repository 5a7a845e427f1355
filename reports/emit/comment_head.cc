// See comment_head.h.
#include "reports/emit/comment_head.h"

#include <fmt/format.h>

#include "reports/pytorch/pytorch_module.h"
#include "src/core/text.h"

namespace lockstep {

std::string comment_head(const EmitFacts& facts, std::string_view what,
                         const std::vector<std::string>& lines,
                         const std::vector<std::string>& unsaid) {
  const std::string model = facts.model.empty() ? "a model" : printable(facts.model);
  std::string out =
      wrapped(fmt::format("{} for {}, written by Lockstep.", what, model), "# ", "# ");
  for (const std::string& line : lines) out += line.empty() ? "#\n" : "# " + line + "\n";
  if (!facts.evidence.empty()) {
    const std::string of = unsaid.empty() ? "Evidence: " : "Evidence for the policy as a whole: ";
    out += "#\n" + wrapped(of + printable(facts.evidence) + ".", "# ", "# ");
  }
  if (!unsaid.empty()) {
    out += "#\n# The policy also says what this file does not do:\n";
    for (const std::string& sentence : unsaid) out += wrapped(printable(sentence), "# - ", "#   ");
  }
  return out;
}

}  // namespace lockstep

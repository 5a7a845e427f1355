// The first lines of files whose comments begin with '#'.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/emit/emit_facts.h"

namespace lockstep {

// What the file is, `lines` as they are, the evidence, and what the file does not do.
std::string comment_head(const EmitFacts& facts, std::string_view what,
                         const std::vector<std::string>& lines,
                         const std::vector<std::string>& unsaid);

}  // namespace lockstep

// A check's result for a terminal: the verdict and its reason first.
#pragma once

#include <string>

#include "analysis/check/check_result.h"
#include "reports/block.h"
#include "reports/text_writer.h"

namespace lockstep {

// "regression: lane fp32, step 0: ...".
std::string check_headline(const CheckResult& result);
// The rest, for every writer of blocks.
Blocks check_blocks(const CheckResult& result);
std::string check_text(const CheckResult& result, const TextStyle& style);

}  // namespace lockstep

// The answer of `recommend` for a folder of parts.
#pragma once

#include <string>

#include "analysis/parts/part_advice.h"
#include "reports/writers/text_writer.h"

namespace lockstep {

struct PartAdviceFacts {
  std::string folder;  // of the parts
  std::string runs;    // the folder of the run files
};

std::string part_advice_text(const PartAdvice& advice, const PartAdviceFacts& facts,
                             const TextStyle& style);
std::string part_advice_json(const PartAdvice& advice, const PartAdviceFacts& facts);
// The first sentence alone.
std::string part_advice_sentence(const PartAdvice& advice);

}  // namespace lockstep

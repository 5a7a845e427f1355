// A check's result in words: the verdict and the origin first, for a terminal and for every writer
// of blocks.
#pragma once

#include <string>

#include "analysis/check/check_result.h"
#include "reports/writers/page.h"
#include "reports/writers/text_writer.h"

namespace lockstep {

// "REGRESSION".
std::string verdict_word(const CheckResult& result);
// Why: of a regression, the origin's sentence. No full stop.
std::string check_headline(const CheckResult& result);
std::string check_text(const CheckResult& result, const TextStyle& style);
// The same as sections, with a table of single alarms: for Markdown and HTML.
ReportPage check_page(const CheckResult& result);

}  // namespace lockstep

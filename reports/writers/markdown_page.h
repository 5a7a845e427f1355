// A report as one comment of a pull request.
#pragma once

#include <string>

#include "reports/writers/page.h"

namespace lockstep {

// GitHub refuses longer comments. Source: its API's error "body is too long (maximum is 65536
// characters)".
inline constexpr size_t kMostMarkdownBytes = 65536;

// The verdict first. Sections that do not fit are named at the end.
std::string markdown_page(const ReportPage& page);

}  // namespace lockstep

// A page: what a writer turns into text, Markdown, HTML or CSV, whatever it is a report of.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/writers/block.h"

namespace lockstep {

struct WrittenSection {
  std::string_view name, title;  // name: of its anchor and its files, "loss-scale"
  Blocks blocks;
};
struct ReportPage {
  std::string title, subtitle;
  std::vector<WrittenSection> sections;
};

}  // namespace lockstep

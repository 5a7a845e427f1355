// Headings, and what a comment has room for.
#include "reports/writers/markdown_page.h"

#include <vector>

#include "reports/writers/markdown_writer.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kReserve = 2048;  // for the line that names what was left out

}  // namespace

std::string markdown_page(const ReportPage& page) {
  std::string out =
      "## Lockstep: " + markdown_text(page.title) + "\n" + markdown_text(page.subtitle) + "\n";
  std::vector<std::string> left_out;
  for (const WrittenSection& section : page.sections) {
    const std::string text =
        "\n### " + std::string(section.title) + "\n" + to_markdown(section.blocks);
    if (out.size() + text.size() + kReserve > kMostMarkdownBytes) {
      left_out.emplace_back(section.title);
    } else {
      out += text;
    }
  }
  if (!left_out.empty()) {
    out += "\nToo long for a comment, see the text or HTML report: " + join(left_out, "; ") + ".\n";
  }
  return out;
}

}  // namespace lockstep

// The parts of a report, without their layout.
// Sections return blocks of plain data; a writer turns them into text (HTML and Markdown writers
// will take the same blocks). Nothing here knows what the numbers mean.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace lockstep {

enum class Tone { kPlain, kGood, kDoubtful, kBad };

struct Paragraph {
  std::string text;  // one line; the writer wraps it
  Tone tone = Tone::kPlain;
  size_t toned = 0;  // so many bytes at the start have the tone; fewer than a line
};

enum class Align { kLeft, kRight };

struct TableColumn {
  std::string title;
  Align align = Align::kRight;
  bool optional = false;  // left out where the table does not fit, the last such column first
};
struct TableBlock {
  std::vector<TableColumn> columns;
  std::vector<std::vector<std::string>> rows;  // as many cells as columns
  std::vector<std::string> notes;              // printed below, one each
};

// Text that is not changed, e.g. a command to copy.
struct Verbatim {
  std::string text;
};

using Block = std::variant<Paragraph, TableBlock, Verbatim>;
using Blocks = std::vector<Block>;

Block paragraph(std::string text);
Block paragraph(std::string text, Tone tone, size_t toned);
Block verbatim(std::string text);

}  // namespace lockstep

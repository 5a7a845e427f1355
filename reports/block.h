// The parts of a report, without their layout.
// Sections return blocks of plain data; the writers for text, Markdown and HTML take the same
// blocks. Nothing here knows what the numbers mean.
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

enum class CurveScale { kLinear, kPowersOfTwo };

// A point of a curve with something to say.
struct CurveMark {
  size_t index = 0;
  std::string text;
};
struct CurveSeries {
  std::string name;
  std::vector<double> values;  // at most as many as x labels; a value that is not finite is a gap
  std::vector<CurveMark> marks = {};
  bool is_noise = false;  // drawn behind the others, in grey
};
// Curves over one x axis. A writer that draws nothing prints the table in their place.
struct CurveBlock {
  std::string title, x_title;
  CurveScale scale = CurveScale::kLinear;
  std::vector<std::string> x;
  std::vector<CurveSeries> series;
  TableBlock table;
};

using Block = std::variant<Paragraph, TableBlock, Verbatim, CurveBlock>;
using Blocks = std::vector<Block>;

Block paragraph(std::string text);
Block paragraph(std::string text, Tone tone, size_t toned);
Block verbatim(std::string text);

}  // namespace lockstep

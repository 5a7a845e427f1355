// The parts of a report, without their layout.
// Sections return blocks of plain data; the writers for text, Markdown and HTML take the same
// blocks. Nothing here knows what the numbers mean.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "reports/writers/chart.h"

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
// What readers see, "42.1%", and where that is rounded the number itself, for files.
struct Cell {
  std::string text;
  std::optional<double> number = {};

  Cell(std::string words) : text(std::move(words)) {}  // NOLINT: a cell is a text first of all
  Cell(const char* words) : text(words) {}             // NOLINT
  Cell(std::string words, double value) : text(std::move(words)), number(value) {}
  friend bool operator==(const Cell& cell, std::string_view words) { return cell.text == words; }
};
struct TableBlock {
  std::vector<TableColumn> columns;
  std::vector<std::vector<Cell>> rows;  // as many cells as columns
  std::vector<std::string> notes;       // printed below, one each
  std::string name = {};                // distinguishes it in its section: a lane
};

// Text that is not changed, e.g. a command to copy.
struct Verbatim {
  std::string text;
};

// A writer that draws nothing prints the table in the chart's place.
struct ChartBlock {
  std::string title;
  Chart chart;
  TableBlock table;
};

// How a fault went through the network, from its origin on.
struct ChainLink {
  std::string layer, op, role, source_line;
  std::string what;                         // "112345 exceeds fp16's 65504"
  int32_t site = -1;                        // whose histogram the link opens
  std::optional<ExponentCounts> seen = {};  // before rounding
  std::optional<FormatWindow> window = {};  // of the site's format
};
struct ChainBlock {
  std::string title, lane;
  Tone tone = Tone::kBad;
  std::vector<ChainLink> links;
  size_t left_out = 0;  // links at the end
};

using Block = std::variant<Paragraph, TableBlock, Verbatim, ChartBlock, ChainBlock>;
using Blocks = std::vector<Block>;

// Without the columns whose cells are all empty. For readers; files for programs keep them.
TableBlock without_empty_columns(TableBlock table);

Block paragraph(std::string text);
// A chain for writers that draw nothing: its title and a list.
Blocks chain_text(const ChainBlock& chain);
Block paragraph(std::string text, Tone tone, size_t toned);
Block verbatim(std::string text);
Block chart(std::string title, Chart chart, TableBlock table);
Block table(TableBlock table);
Block chain(ChainBlock chain);

}  // namespace lockstep

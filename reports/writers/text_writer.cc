// Wrapping, column widths and padding.
#include "reports/writers/text_writer.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kIndent = "  ";
constexpr std::string_view kGap = "  ";

std::string padded(const std::string& cell, int width, Align align) {
  const auto missing = static_cast<size_t>(std::max(0, width - display_width(cell)));
  const std::string space(missing, ' ');
  return align == Align::kLeft ? cell + space : space + cell;
}

std::string trimmed_line(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// The text cut to `width` columns, with an ellipsis for its middle, because names also differ at
// their ends (torch-autocast-fp16@ampere, ...@hopper).
std::string shortened(const std::string& text, int width) {
  const int columns = display_width(text);
  if (columns <= width) return text;
  const int tail = (width - 1) / 2, head = width - 1 - tail;
  std::string front, back;
  int column = 0;
  for (const char c : text) {
    const bool starts_character = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    column += starts_character;
    if (column <= head) front += c;
    if (column > columns - tail) back += c;
  }
  return front + "…" + back;
}

constexpr int kReadableName = 20;  // a left-aligned column is not made narrower for optional ones

std::vector<int> widths_of(const TableBlock& table) {
  std::vector<int> width;
  for (const TableColumn& c : table.columns) width.push_back(display_width(c.title));
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i)
      width[i] = std::max(width[i], display_width(row[i].text));
  }
  return width;
}

// By how much the table is too wide for the page; at most 0: it fits.
int excess_of(std::span<const int> width, int page) {
  int excess = static_cast<int>(kIndent.size() + kGap.size() * (width.size() - 1)) - page;
  for (const int w : width) excess += w;
  return excess;
}

// Without optional columns as long as names would have to become shorter than kReadableName.
TableBlock that_fits(TableBlock table, int page) {
  for (;;) {
    std::vector<int> width = widths_of(table);
    for (size_t i = 0; i < width.size(); ++i) {
      if (table.columns[i].align == Align::kLeft) width[i] = std::min(width[i], kReadableName);
    }
    const auto last = std::ranges::find_if(table.columns.rbegin(), table.columns.rend(),
                                           [](const TableColumn& c) { return c.optional; });
    if (excess_of(width, page) <= 0 || last == table.columns.rend()) return table;
    const auto at = std::distance(table.columns.begin(), last.base()) - 1;
    table.columns.erase(table.columns.begin() + at);
    for (auto& row : table.rows) row.erase(row.begin() + at);
  }
}

// Shrinks the widest left-aligned columns until the table fits the page; no column becomes narrower
// than its title.
void shrink_to_page(const TableBlock& table, int page, std::vector<int>& width) {
  for (int excess = excess_of(width, page); excess > 0; --excess) {
    int* widest = nullptr;
    for (size_t i = 0; i < width.size(); ++i) {
      const TableColumn& column = table.columns[i];
      if (column.align != Align::kLeft || width[i] <= display_width(column.title)) continue;
      if (widest == nullptr || width[i] > *widest) widest = &width[i];
    }
    if (widest == nullptr || *widest <= 1) return;
    --*widest;
  }
}

// Escape sequences of ECMA-48: bold, and a colour that dark and light backgrounds show.
struct ToneEscape {
  Tone tone;
  std::string_view escape;
};
constexpr ToneEscape kEscapes[] = {
    {Tone::kBad, "\x1b[1;31m"}, {Tone::kDoubtful, "\x1b[1;33m"}, {Tone::kGood, "\x1b[1;32m"}};
constexpr std::string_view kPlainAgain = "\x1b[0m";

std::string_view escape_of(Tone tone) {
  const auto* const row = std::ranges::find(kEscapes, tone, &ToneEscape::tone);
  return row == std::end(kEscapes) ? "" : row->escape;
}

// Names are of unknown origin.
TableBlock printable_table(TableBlock table) {
  for (TableColumn& column : table.columns) column.title = printable(column.title);
  for (auto& row : table.rows) {
    for (Cell& cell : row) cell.text = printable(cell.text);
  }
  return table;
}

struct TextWriter {
  TextStyle style;
  std::string out = {};

  int prose_width() const { return std::min(style.width, kTextWidth); }
  void operator()(const Paragraph& p) {
    const std::string text = wrap(p.text, prose_width());
    const std::string_view escape = style.colour ? escape_of(p.tone) : "";
    const size_t toned = printable(std::string_view(p.text).substr(0, p.toned)).size();
    if (escape.empty() || toned == 0 || toned > text.find('\n')) {
      out += text;
      return;
    }
    out +=
        std::string(escape) + text.substr(0, toned) + std::string(kPlainAgain) + text.substr(toned);
  }
  void operator()(const Verbatim& v) {
    for (const std::string& line : split(printable_lines(v.text), '\n')) {
      // A line that is too long is wrapped.
      const bool fits = display_width(line) + display_width(kIndent) <= kTextWidth;
      out += fits ? trimmed_line(std::string(kIndent) + line) : wrap(line, kTextWidth, kIndent);
    }
  }
  void operator()(const ChartBlock& c) { (*this)(c.table); }
  void operator()(const ChainBlock& c) {
    for (const Block& block : chain_text(c)) std::visit(*this, block);
  }
  void operator()(const TableBlock& whole) {
    const TableBlock t = that_fits(printable_table(without_empty_columns(whole)), style.width);
    std::vector<int> width = widths_of(t);
    shrink_to_page(t, style.width, width);
    std::string line(kIndent), rule(kIndent);
    for (size_t i = 0; i < t.columns.size(); ++i) {
      if (i > 0) line += kGap;
      if (i > 0) rule += kGap;
      line += padded(t.columns[i].title, width[i], t.columns[i].align);
      rule += std::string(static_cast<size_t>(width[i]), '-');
    }
    out += trimmed_line(line) + trimmed_line(rule);
    for (const auto& row : t.rows) {
      line = kIndent;
      for (size_t i = 0; i < row.size(); ++i) {
        if (i > 0) line += kGap;
        line += padded(shortened(row[i].text, width[i]), width[i], t.columns[i].align);
      }
      out += trimmed_line(line);
    }
    for (const std::string& note : t.notes) out += wrap(note, prose_width(), kIndent);
  }
};

}  // namespace

int display_width(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a UTF-8 continuation byte
  }));
}

std::string wrap(std::string_view text, int width, std::string_view indent) {
  std::string out, line(indent);
  bool line_is_empty = true;
  for (const std::string& word : split(printable(text), ' ')) {
    if (word.empty()) continue;
    if (!line_is_empty && display_width(line) + 1 + display_width(word) > width) {
      out += trimmed_line(line);
      line = indent;
      line_is_empty = true;
    }
    if (!line_is_empty) line += ' ';
    line += word;
    line_is_empty = false;
  }
  return out + trimmed_line(line);
}

std::string broken_command(const std::string& command) {
  constexpr int kWidth = kTextWidth - 6;  // the block's indent, the continuation's, " \\"
  std::string out, line, word;
  bool quoted = false;
  const auto flush = [&] {
    if (!line.empty() && display_width(line) + 1 + display_width(word) > kWidth) {
      out += line + " \\\n";
      line = "  " + word;
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
    word.clear();
  };
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    const bool escaped = !quoted && word.ends_with('\\');
    if (c == '\'' && !escaped) quoted = !quoted;
    const bool has_value = word.starts_with('-') && word.find(' ') == std::string::npos &&
                           i + 1 < command.size() && command[i + 1] != '-';
    if (c == ' ' && !quoted && !has_value) {
      flush();
    } else {
      word += c;
    }
  }
  flush();
  return out + line;
}

size_t find_colour(std::string_view text) {
  size_t found = text.find(kPlainAgain);
  for (const ToneEscape& row : kEscapes) found = std::min(found, text.find(row.escape));
  return found;
}

std::string heading_text(std::string_view title) {
  return std::string(title) + "\n" + std::string(static_cast<size_t>(display_width(title)), '=') +
         "\n";
}

std::string to_text(const Blocks& blocks, const TextStyle& style) {
  TextWriter writer{style};
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0) writer.out += "\n";
    std::visit(writer, blocks[i]);
  }
  return writer.out;
}

std::string page_text(const ReportPage& page, const TextStyle& style) {
  std::string out;
  for (const WrittenSection& section : page.sections) {
    if (!out.empty()) out += "\n";
    out += heading_text(section.title) + to_text(section.blocks, style);
  }
  return out;
}

}  // namespace lockstep

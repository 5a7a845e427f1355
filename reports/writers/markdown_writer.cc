// Escaping, tables, code fences.
#include "reports/writers/markdown_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "reports/writers/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kOpenRows = 10;   // a longer table is collapsed
constexpr size_t kMostRows = 100;  // the rest is counted

bool is_in_word(std::string_view text, size_t at) {
  const auto is_word = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i]));
  };
  return at > 0 && is_word(at - 1) && is_word(at + 1);
}

// The text with every character escaped that could be markup or make a link. An empty comment
// separates @ and # from what follows, because GitHub looks for names and numbers in rendered text.
std::string escaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '@':
      case '#':
        out += fmt::format("\\{}<!-- -->", c);
        break;
      case ':':
        out += text.substr(i).starts_with("://") ? "&#58;" : ":";
        break;
      case '.':
        out += text.substr(0, i).ends_with("www") ? "\\." : ".";
        break;
      case '_':
        // Between letters and digits it is no markup.
        if (is_in_word(text, i)) {
          out += c;
          break;
        }
        [[fallthrough]];
      case '\\':
      case '`':
      case '*':
      case '[':
      case ']':
      case '|':
      case '~':
      case '$':
        out += '\\';
        [[fallthrough]];
      default:
        out += c;
    }
  }
  return out;
}

// One cell or one line of prose. '|' inside code still ends a cell, so code is only in prose.
std::string cell_text(std::string_view text) {
  return escaped(printable(text));
}

std::string_view sign_of(Tone tone) {
  switch (tone) {
    case Tone::kBad:
      return "❌ ";
    case Tone::kDoubtful:
      return "❔ ";
    case Tone::kGood:
      return "✅ ";
    case Tone::kPlain:
      break;
  }
  return "";
}

// Text that begins like a list item or heading of its own stays a paragraph.
std::string at_line_start(std::string text) {
  const bool is_number = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0]));
  const size_t end = text.find_first_not_of("0123456789");
  if (is_number && end != std::string::npos && (text[end] == '.' || text[end] == ')')) {
    text.insert(end, "\\");
  } else if (!text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == '=')) {
    text.insert(0, "\\");
  }
  return text;
}

struct MarkdownWriter {
  std::string out = {};

  void operator()(const Paragraph& p) {
    if (p.toned > 0) {
      out += fmt::format("{}**{}**{}\n", sign_of(p.tone), cell_text(p.text.substr(0, p.toned)),
                         markdown_text(p.text.substr(p.toned)));
    } else if (p.text.starts_with("- ")) {
      out += "- " + markdown_text(p.text.substr(2)) + "\n";
    } else {
      out += at_line_start(markdown_text(p.text)) + "\n";
    }
  }
  void operator()(const Verbatim& v) {
    std::string fence = "```";
    while (v.text.find(fence) != std::string::npos) fence += '`';
    out += fence + "\n";
    for (const std::string& line : split(v.text, '\n')) out += printable(line) + "\n";
    out += fence + "\n";
  }
  void operator()(const ChartBlock& c) { (*this)(c.table); }
  void operator()(const ChainBlock& c) {
    for (const Block& block : chain_text(c)) std::visit(*this, block);
  }
  void operator()(const TableBlock& whole) {
    const TableBlock t = without_empty_columns(whole);
    const bool is_long = t.rows.size() > kOpenRows;
    if (is_long) {
      out += fmt::format("<details><summary>{}</summary>\n\n", counted(t.rows.size(), "row"));
    }
    std::string rule = "|";
    out += "|";
    for (const TableColumn& column : t.columns) {
      out += " " + cell_text(column.title) + " |";
      rule += column.align == Align::kLeft ? " :--- |" : " ---: |";
    }
    out += "\n" + rule + "\n";
    for (size_t i = 0; i < std::min(t.rows.size(), kMostRows); ++i) {
      out += "|";
      for (const Cell& cell : t.rows[i]) out += " " + cell_text(cell.text) + " |";
      out += "\n";
    }
    if (t.rows.size() > kMostRows) {
      out += fmt::format("\nand {} more.\n", counted(t.rows.size() - kMostRows, "row"));
    }
    for (const std::string& note : t.notes) out += "\n" + at_line_start(markdown_text(note)) + "\n";
    if (is_long) out += "\n</details>\n";
  }
};

}  // namespace

std::string markdown_text(std::string_view text) {
  std::string out;
  const std::vector<std::string> parts = split(printable(text), '`');
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool is_last = i + 1 == parts.size();
    if (i % 2 == 1 && !is_last && !parts[i].empty()) {
      out += "`" + parts[i] + "`";
    } else {
      out += (i % 2 == 1 ? "\\`" : "") + escaped(parts[i]);
      if (i % 2 == 1 && !is_last) out += "\\`";
    }
  }
  return out;
}

std::string to_markdown(const Blocks& blocks) {
  MarkdownWriter writer;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0) writer.out += "\n";
    std::visit(writer, blocks[i]);
  }
  return writer.out;
}

}  // namespace lockstep

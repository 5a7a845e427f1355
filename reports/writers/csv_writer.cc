// Names of the tables, quoting.
#include "reports/writers/csv_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>

#include "reports/writers/chart_csv.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

bool is_number(const std::string& cell) {
  char* end = nullptr;
  std::strtod(cell.c_str(), &end);
  return end != cell.c_str() && *end == '\0';
}

// Source: OWASP, "CSV Injection". A lone sign is not a formula.
bool is_formula(const std::string& cell) {
  constexpr std::string_view kStarts = "=+-@\t\r";
  return cell.size() > 1 && kStarts.find(cell[0]) != std::string_view::npos && !is_number(cell);
}

// The number with all digits; a cell that was not measured is empty.
std::string text_of(const Cell& cell) {
  if (cell.number) return fmt::format("{}", *cell.number);
  return cell.text == "-" ? "" : cell.text;
}

CsvRows rows_of(const TableBlock& table) {
  CsvRows rows = {{}};
  for (const TableColumn& column : table.columns) {
    const auto uses = std::ranges::count(rows[0], column.title);  // 1: two runs of one path
    rows[0].push_back(uses == 0 ? column.title : fmt::format("{} {}", column.title, uses + 1));
  }
  for (const auto& row : table.rows) {
    std::vector<std::string>& cells = rows.emplace_back();
    for (const Cell& cell : row) cells.push_back(text_of(cell));
  }
  return rows;
}

void add_rows(const ChainBlock& chain, CsvRows& rows) {
  if (rows.empty()) rows = {{"chain", "layer", "op", "role", "source_line", "what"}};
  for (const ChainLink& link : chain.links) {
    rows.push_back({chain.title, link.layer, link.op, link.role, link.source_line, link.what});
  }
}

// The tables of one section, and what distinguishes each from the others.
struct Tables {
  struct Part {
    std::string lane, kind;
    CsvRows rows;
  };
  std::vector<Part> parts = {};

  void operator()(const Paragraph&) {}
  void operator()(const Verbatim&) {}
  void operator()(const TableBlock& t) {
    if (!t.columns.empty()) parts.push_back({t.name, "", rows_of(t)});
  }
  void operator()(const ChartBlock& c) {
    (*this)(c.table);
    parts.push_back({c.table.name, std::string(chart_kind(c.chart)), chart_csv(c.chart)});
  }
  // The chains of a lane are one table.
  void operator()(const ChainBlock& c) {
    constexpr std::string_view kKind = "chain";
    const bool is_new = parts.empty() || parts.back().lane != c.lane || parts.back().kind != kKind;
    if (is_new) parts.push_back({c.lane, std::string(kKind), {}});
    add_rows(c, parts.back().rows);
  }
};

}  // namespace

std::string csv_cell(const std::string& cell) {
  const std::string shown = printable_lines(cell);
  const std::string text = is_formula(cell) ? "'" + shown : shown;
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv_text(std::span<const std::vector<std::string>> rows) {
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : ",") + csv_cell(row[i]);
    text += "\r\n";
  }
  return text;
}

std::string csv_file_name(std::string_view name) {
  constexpr std::string_view kAllowed = "._@-";
  std::string text;
  for (const char c : name) {
    const bool stays =
        std::isalnum(static_cast<unsigned char>(c)) || kAllowed.find(c) != std::string_view::npos;
    text += stays ? c : '_';
  }
  return text;
}

std::vector<CsvTable> csv_tables(const std::vector<WrittenSection>& sections) {
  std::vector<CsvTable> tables;
  std::map<std::string, int> uses;  // of a name
  for (const WrittenSection& section : sections) {
    Tables found;
    for (const Block& block : section.blocks) std::visit(found, block);
    for (const Tables::Part& part : found.parts) {
      std::string name = csv_file_name(section.name);
      if (!part.lane.empty()) name += "-" + csv_file_name(part.lane);
      if (!part.kind.empty()) name += "-" + part.kind;
      std::string free = name;
      while (++uses[free] > 1) free = fmt::format("{}-{}", name, uses[name]);
      tables.push_back({free, csv_text(part.rows)});
    }
  }
  return tables;
}

}  // namespace lockstep

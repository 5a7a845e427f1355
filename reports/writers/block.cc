// Makes blocks. Out of line, because GCC 12 warns about a variant's other members when it inlines
// these.
#include "reports/writers/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace lockstep {

TableBlock without_empty_columns(TableBlock table) {
  for (size_t i = table.columns.size(); i-- > 0;) {
    const auto is_empty = [&](const auto& row) { return row[i].text.empty(); };
    if (table.rows.empty() || !std::ranges::all_of(table.rows, is_empty)) continue;
    const auto at = static_cast<std::ptrdiff_t>(i);
    table.columns.erase(table.columns.begin() + at);
    for (auto& row : table.rows) row.erase(row.begin() + at);
  }
  return table;
}

Block paragraph(std::string text) {
  return Paragraph{std::move(text)};
}

Block paragraph(std::string text, Tone tone, size_t toned) {
  return Paragraph{std::move(text), tone, toned};
}

Blocks chain_text(const ChainBlock& chain) {
  Blocks out = {paragraph(chain.title)};
  for (const ChainLink& link : chain.links) {
    const std::string source = link.source_line.empty() ? "" : " at " + link.source_line;
    out.push_back(paragraph(fmt::format("- {}, {} {}{}: {}", link.layer.empty() ? "-" : link.layer,
                                        link.op, link.role, source, link.what)));
  }
  if (chain.left_out > 0) {
    out.push_back(paragraph(fmt::format("- and {} more layers", chain.left_out)));
  }
  return out;
}

Block chart(std::string title, Chart chart, TableBlock table) {
  return ChartBlock{std::move(title), std::move(chart), std::move(table)};
}

Block table(TableBlock table) {
  return table;
}

Block chain(ChainBlock chain) {
  return chain;
}

Block verbatim(std::string text) {
  return Verbatim{std::move(text)};
}

}  // namespace lockstep

// Listings as text, Markdown and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/writers/text_writer.h"
#include "src/cli/listing.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

// Cells longer than this go to lines of their own in the text listing.
constexpr int kShortCell = 26;

std::string markdown_cell(const std::string& cell) {
  std::string out;
  for (const char c : cell) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// Every line but empty ones, indented by two columns.
std::string indented(const std::string& picture) {
  std::string out;
  for (const std::string& line : split(picture, '\n')) {
    if (!line.empty()) out += "  " + line;
    out += "\n";
  }
  out.pop_back();  // no line follows the last newline
  return out;
}

}  // namespace

// Short columns side by side; long ones (meaning, source) wrapped below, indented.
std::string listing_text(const Listing& listing) {
  const size_t n = listing.columns.size();
  std::vector<int> width(n);
  for (size_t c = 0; c < n; ++c) {
    width[c] = display_width(listing.columns[c]);
    for (const auto& row : listing.rows) width[c] = std::max(width[c], display_width(row[c]));
  }
  const auto is_short = [&](size_t c) { return c == 0 || width[c] <= kShortCell; };
  const auto side_by_side = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t c = 0; c < n; ++c) {
      if (!is_short(c)) continue;
      line +=
          cells[c] + std::string(static_cast<size_t>(width[c] - display_width(cells[c]) + 2), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  };
  std::string out = side_by_side(listing.columns);
  for (size_t r = 0; r < listing.rows.size(); ++r) {
    const auto& row = listing.rows[r];
    out += n > 1 ? side_by_side(row) : wrap(row[0], kTextWidth, "");
    for (size_t c = 0; c < n; ++c) {
      if (is_short(c) || row[c].empty()) continue;
      const bool is_meaning = listing.columns[c] == "meaning" || listing.columns[c] == "limits";
      out += wrap(is_meaning ? row[c] : listing.columns[c] + ": " + row[c], kTextWidth, "    ");
    }
    if (listing.draws) out += "\n" + indented(listing.pictures[r]) + "\n";
  }
  return out;
}

// Drawings follow the table, each under its name; a listing of names and drawings has no table.
std::string listing_markdown(const Listing& listing) {
  std::string drawn;
  for (size_t r = 0; listing.draws && r < listing.rows.size(); ++r) {
    drawn += std::string(r == 0 ? "" : "\n") + "**" + listing.rows[r][0] + "**\n```\n" +
             listing.pictures[r] + "```\n";
  }
  if (listing.columns.size() == 1) return drawn;
  std::string out = "|", rule = "|";
  for (const std::string& column : listing.columns) {
    out += " " + column + " |";
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const auto& row : listing.rows) {
    out += "|";
    for (const std::string& cell : row) out += " " + markdown_cell(cell) + " |";
    out += "\n";
  }
  return drawn.empty() ? out : out + "\n" + drawn;
}

std::string listing_json(const Listing& listing) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t r = 0; r < listing.rows.size(); ++r) {
    nlohmann::ordered_json object;
    for (size_t c = 0; c < listing.columns.size(); ++c) {
      object[listing.columns[c]] = listing.rows[r][c];
    }
    if (!listing.pictures.empty()) object["picture"] = listing.pictures[r];
    rows.push_back(std::move(object));
  }
  return rows.dump(2) + "\n";
}

}  // namespace lockstep

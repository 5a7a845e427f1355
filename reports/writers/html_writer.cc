// Paragraphs, lists, tables. A chart is its data as JSON, which the page's script draws, and its
// table.
#include "reports/writers/html_writer.h"

#include <fmt/format.h>

#include "reports/writers/chart_json.h"
#include "reports/writers/html_chain.h"
#include "reports/writers/html_text.h"
#include "reports/writers/text_writer.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kListItem = "- ";
constexpr int kWrappedFrom = 32;  // longer text of a cell may take several lines

// A tone is a colour, a sign and the words of the sentence, so that none of them is needed alone.
struct ToneMark {
  std::string_view css, sign;
};
ToneMark mark_of(Tone tone) {
  switch (tone) {
    case Tone::kBad:
      return {"bad", "✕"};
    case Tone::kDoubtful:
      return {"doubtful", "?"};
    case Tone::kGood:
      return {"good", "✓"};
    case Tone::kPlain:
      break;
  }
  return {"plain", "–"};
}

struct HtmlWriter {
  std::string_view section;
  HtmlStyle style;
  std::string out = {};
  int tables = 0, charts = 0;
  bool in_list = false;
  std::vector<bool> explained = {};  // words, in this section

  std::string prose(std::string_view text) { return html_prose(text, explained); }
  void end_list() {
    if (in_list) out += "</ul>\n";
    in_list = false;
  }
  void operator()(const Paragraph& p) {
    const bool is_item = p.text.starts_with(kListItem);
    if (!is_item) end_list();
    if (is_item) {
      if (!in_list) out += "<ul>\n";
      in_list = true;
      out += "<li>" + prose(p.text.substr(kListItem.size())) + "</li>\n";
    } else if (p.toned > 0) {
      const ToneMark mark = mark_of(p.tone);
      out += fmt::format(
          "<p class=\"verdict {}\"><span class=\"sign\" aria-hidden=\"true\">{}</span>"
          "<span><strong>{}</strong>{}</span></p>\n",
          mark.css, mark.sign, html_text(p.text.substr(0, p.toned)), prose(p.text.substr(p.toned)));
    } else {
      const bool introduces = p.text.ends_with(':');
      out += fmt::format("<p{}>{}</p>\n", introduces ? " class=\"lead\"" : "", prose(p.text));
    }
  }
  void operator()(const Verbatim& v) {
    end_list();
    out += "<pre tabindex=\"0\"><code>";
    for (const std::string& line : split(v.text, '\n')) out += html_text(line) + "\n";
    out += "</code></pre>\n";
  }
  void operator()(const ChartBlock& c) {
    end_list();
    out += fmt::format(
        "<figure class=\"chart\" id=\"{}-chart-{}\">\n<figcaption>{}</figcaption>\n"
        "<script type=\"application/json\">{}</script>\n",
        section, ++charts, html_text(c.title), chart_json(c.chart));
    out += fmt::format("<details{}><summary>Table</summary>\n", style.has_charts ? "" : " open");
    (*this)(c.table);
    out += "</details>\n</figure>\n";
  }
  void operator()(const ChainBlock& c) {
    end_list();
    out += html_chain(c, explained);
  }
  void operator()(const TableBlock& whole) {
    end_list();
    const TableBlock t = without_empty_columns(whole);
    out +=
        fmt::format("<div class=\"scroll\" tabindex=\"0\"><table id=\"{}-table-{}\">\n<thead><tr>",
                    section, ++tables);
    for (const TableColumn& column : t.columns) {
      out += fmt::format("<th scope=\"col\"{}>{}</th>",
                         column.align == Align::kRight ? " class=\"number\"" : "",
                         explain_words(html_text(column.title), explained));
    }
    out += "</tr></thead>\n<tbody>\n";
    for (const auto& row : t.rows) {
      out += "<tr>";
      for (size_t i = 0; i < row.size(); ++i) {
        const bool is_number = t.columns[i].align == Align::kRight;
        const bool is_long = display_width(row[i].text) > kWrappedFrom;
        out += fmt::format("<td{}>{}</td>",
                           is_number ? " class=\"number\""
                           : is_long ? " class=\"long\""
                                     : "",
                           html_text(row[i].text));
      }
      out += "</tr>\n";
    }
    out += "</tbody></table></div>\n";
    for (const std::string& note : t.notes) out += "<p class=\"note\">" + prose(note) + "</p>\n";
  }
};

}  // namespace

std::string to_html(const Blocks& blocks, std::string_view section, const HtmlStyle& style) {
  HtmlWriter writer{.section = section, .style = style};
  for (const Block& block : blocks) std::visit(writer, block);
  writer.end_list();
  return writer.out;
}

}  // namespace lockstep

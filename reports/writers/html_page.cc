// The page around the sections: head, navigation, footer.
#include "reports/writers/html_page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>

#include "reports/writers/html_text.h"
#include "reports/writers/html_writer.h"

namespace lockstep {
namespace {

struct PageFile {
  std::string_view name, text;
};
const PageFile kPageFiles[] = {
// too long for constexpr
#include "embedded_page.inc"
};

std::string_view page_file(std::string_view name) {
  return std::ranges::find(kPageFiles, name, &PageFile::name)->text;
}

// "'sha256-...'": a script that the browser may run.
// Source: W3C Content Security Policy Level 3, section 2.3.1.
std::string script_hash(std::string_view script) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_Digest(script.data(), script.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("html: OpenSSL has no SHA-256");
  }
  std::array<unsigned char, 2 * EVP_MAX_MD_SIZE> base64{};
  const int length = EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(size));
  return fmt::format("'sha256-{}'", std::string(base64.begin(), base64.begin() + length));
}

constexpr std::string_view kNoCharts =
    "This build of Lockstep draws no charts, because it was made without npm; their tables follow.";
constexpr std::string_view kChartsBy =
    "Charts: Apache ECharts. Its licence and those of its parts are in this file.";

}  // namespace

std::string_view charts_script() {
  return page_file("charts.js");
}

std::string html_page(const ReportPage& page, std::string_view charts) {
  const std::string_view script = page_file("page.js");
  std::string scripts = fmt::format("<script>{}</script>\n", script), hashes = script_hash(script);
  if (!charts.empty()) {
    scripts += fmt::format("<script>{}</script>\n", charts);
    hashes += " " + script_hash(charts);
  }
  const HtmlStyle style{.has_charts = !charts.empty()};
  std::string links, body;
  bool has_chart = false;
  for (const WrittenSection& section : page.sections) {
    const std::string title = html_text(section.title);
    links += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", section.name, title);
    body += fmt::format(
        "<section id=\"{0}\">\n<h2>{1} <a class=\"here\" href=\"#{0}\" "
        "aria-label=\"Link to this section\">#</a></h2>\n{2}</section>\n",
        section.name, title, to_html(section.blocks, section.name, style));
    has_chart |= std::ranges::any_of(section.blocks, [](const Block& block) {
      return std::holds_alternative<ChartBlock>(block);
    });
  }
  const std::string title = html_text(page.title);
  const std::string missing =
      has_chart && charts.empty() ? fmt::format("<p class=\"note\">{}</p>\n", kNoCharts) : "";
  const std::string footer = charts.empty() ? "" : fmt::format("<p>{}</p>", kChartsBy);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src {}\">\n"
      "<title>{}: Lockstep report</title>\n<style>\n{}</style>\n</head>\n<body>\n"
      "<header><p class=\"brand\">Lockstep report</p>\n<h1>{}</h1>\n<p>{}</p>\n{}</header>\n"
      "<div class=\"columns\">\n<nav aria-label=\"Sections\">\n<ul>\n{}</ul>\n"
      "<div id=\"filter\" hidden></div></nav>\n"
      "<main>\n{}</main>\n</div>\n<footer>{}</footer>\n{}</body>\n</html>\n",
      hashes, title, page_file("page.css"), title, html_text(page.subtitle), missing, links, body,
      footer, scripts);
}

}  // namespace lockstep

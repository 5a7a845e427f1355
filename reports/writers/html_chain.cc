// See html_chain.h. The drawings are SVG, so that they need no script.
#include "reports/writers/html_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/writers/html_text.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

constexpr int kBar = 4, kBarGap = 1, kHeight = 32;  // SVG units

// Bars by exponent; those that become zero or exceed the largest number have a colour. Heights are
// square roots, so that a few values can be seen.
std::string drawing_of(const ExponentCounts& seen, const FormatWindow& window) {
  const int seen_last = seen.first + static_cast<int>(seen.counts.size()) - 1;
  const int first = std::min(seen.first, window.min_subnormal) - 1;
  const int last = std::max(seen_last, window.max) + 1;
  const auto place = [&](int exponent) { return (exponent - first) * kBar; };
  const int width = place(last + 1);
  const auto most = static_cast<double>(*std::ranges::max_element(seen.counts));
  std::string bars;
  for (size_t i = 0; i < seen.counts.size(); ++i) {
    if (seen.counts[i] == 0) continue;
    const int exponent = seen.first + static_cast<int>(i);
    // Those just below the smallest number round up to it.
    const bool is_lost = exponent < window.min_subnormal - 1 || exponent > window.max;
    const double height = kHeight * std::sqrt(static_cast<double>(seen.counts[i]) / most);
    bars += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\"/>",
                        is_lost ? "lost" : "kept", place(exponent), kHeight - std::max(1.0, height),
                        kBar - kBarGap, std::max(1.0, height));
  }
  const std::string name =
      fmt::format("Exponents of the values: 2^{} to 2^{}; {} holds 2^{} to 2^{}", seen.first,
                  seen_last, window.name, window.min_subnormal, window.max);
  return fmt::format(
      "<svg class=\"exponents\" viewBox=\"0 0 {0} {1}\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{2}\"><title>{2}</title><rect class=\"window\" x=\"{3}\" y=\"0\" "
      "width=\"{4}\" height=\"{1}\"/>{5}</svg>",
      width, kHeight, html_text(name), place(window.min_subnormal),
      place(window.max + 1) - place(window.min_subnormal), bars);
}

std::string html_link(const ChainLink& link, const std::string& lane,
                      std::vector<bool>& explained) {
  std::string out = "<li>";
  out += fmt::format("<b>{}</b> <span class=\"where\">{} {}</span>",
                     html_text(link.layer.empty() ? "-" : link.layer), html_text(link.op),
                     html_text(link.role));
  if (!link.source_line.empty()) out += fmt::format("<code>{}</code>", html_text(link.source_line));
  out += fmt::format("<span class=\"what\">{}</span>", html_prose(link.what, explained));
  if (link.seen && link.window && !link.seen->counts.empty()) {
    out += drawing_of(*link.seen, *link.window);
  }
  if (link.site >= 0) {
    out += fmt::format(
        "<a class=\"open-histogram\" href=\"#histogram\" data-lane=\"{}\" data-site=\"{}\">"
        "histogram</a>",
        html_text(lane), link.site);
  }
  return out + "</li>\n";
}

}  // namespace

std::string html_chain(const ChainBlock& chain, std::vector<bool>& explained) {
  std::string out = fmt::format("<div class=\"chain\">\n<p class=\"lead\">{}</p>\n<ol>\n",
                                html_prose(chain.title, explained));
  for (const ChainLink& link : chain.links) out += html_link(link, chain.lane, explained);
  if (chain.left_out > 0) {
    out += fmt::format("<li class=\"more\">and {}</li>\n", counted(chain.left_out, "more layer"));
  }
  return out + "</ol>\n</div>\n";
}

}  // namespace lockstep

// How the first faults of each lane went through the network: origin first, then what followed.
#include <fmt/format.h>

#include <cmath>

#include "analysis/findings/finding_kinds.h"
#include "emulation/format/format.h"
#include "reports/run/section.h"
#include "reports/words/format_window.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

// "largest value here 1.1e5, fp16 ends at 65504; 12% not finite": in the step of the chain.
std::string what_happened(const FaultLink& link, bool is_origin) {
  std::string text;
  const bool nothing_finite = link.largest == 0 && link.nonfinite_rate > 0;
  if (std::isinf(link.largest)) {
    text = is_origin ? "an infinity formed inside" : "an infinity came in";
  } else if (std::isfinite(link.largest) && !nothing_finite) {
    text = "largest value here " + two_digits(link.largest);
  }
  if (std::isfinite(link.limit)) {
    const bool is_beyond = std::isfinite(link.largest) && link.largest > link.limit;
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", link.format,
                        is_beyond ? "ends at" : "holds up to", two_digits(link.limit));
  }
  if (link.nonfinite_rate > 0) text += fmt::format("; {} not finite", percent(link.nonfinite_rate));
  if (link.zeroed_rate > 0) text += fmt::format("; {} became zero", percent(link.zeroed_rate));
  return text;
}

ChainLink link_of(const Report& report, const FaultLink& fault, bool is_origin) {
  const Site& site = report.site(fault.site);
  ChainLink link{.layer = site.layer,
                 .op = site.op,
                 .role = std::string(to_string(site.role)),
                 .source_line = site.source_line,
                 .what = what_happened(fault, is_origin),
                 .site = fault.site};
  if (!fault.exponents) return link;
  link.seen = ExponentCounts{fault.exponents->first, fault.exponents->counts};
  if (!fault.format.empty()) link.window = window_of(find_format(fault.format));
  return link;
}

Blocks write_chains(const Report& report) {
  Blocks out;
  for (const LaneReport& lane : report.lanes) {
    size_t at = 0;
    for (const Finding& finding : lane.findings) {
      if (at == lane.views.chains.size()) break;
      if (finding.site < 0) continue;
      const FaultChain& chain = lane.views.chains[at++];
      ChainBlock block{
          .title = fmt::format("{}, step {}: {} in {}.", lane.info.name, chain.step,
                               row_of(finding.kind).name, place_text(report.site(finding.site))),
          .lane = lane.info.name,
          .tone = row_of(finding.kind).breaks ? Tone::kBad : Tone::kDoubtful,
          .links = {},
          .left_out = chain.left_out};
      for (const FaultLink& link : chain.links) {
        block.links.push_back(link_of(report, link, &link == &chain.links.front()));
      }
      out.push_back(lockstep::chain(std::move(block)));
    }
  }
  return out;
}

}  // namespace

Section chains_section() {
  return {.name = "chains",
          .title = "From the origin through the network",
          .in_summary = false,
          .write = write_chains,
          .only_html = true};
}

}  // namespace lockstep

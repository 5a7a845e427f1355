// The list of sections, in their order.
#include "reports/pair/pair_page.h"

#include <fmt/format.h>

#include <vector>

#define LOCKSTEP_PAIR_SECTIONS(section) \
  section(changes) section(settings) section(findings) section(losses) section(layers) section(runs)

namespace lockstep {

#define LOCKSTEP_DECLARE(name) PairSection name##_pair_section();
LOCKSTEP_PAIR_SECTIONS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::span<const PairSection> pair_sections() {
#define LOCKSTEP_ROW(name) name##_pair_section(),
  static const std::vector<PairSection> all = {LOCKSTEP_PAIR_SECTIONS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return all;
}

ReportPage pair_page(const ReportPair& pair) {
  ReportPage page{.title = pair.before_name + " and " + pair.after_name,
                  .subtitle = fmt::format("before: {}, after: {}", page_subtitle(pair.before),
                                          page_subtitle(pair.after)),
                  .sections = {}};
  for (const PairSection& section : pair_sections()) {
    Blocks blocks = section.write(pair);
    if (!blocks.empty()) page.sections.push_back({section.name, section.title, std::move(blocks)});
  }
  return page;
}

}  // namespace lockstep

// The list of sections, in their order; each file sections/NAME.cc defines its row, NAME_section().
#include "reports/run/section.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "reports/writers/number_text.h"

#define LOCKSTEP_SECTIONS(section)                                                           \
  section(capture) section(recommendation) section(verdict) section(findings) section(lanes) \
      section(parts) section(watched) section(loss) section(loss_scale) section(chains)      \
          section(heat_map) section(exponents) section(scales) section(sensitivity)          \
              section(gradients) section(layers) section(error_growth) section(updates)      \
                  section(sums) section(hardware) section(costs) section(missing)            \
                      section(provenance)

namespace lockstep {

#define LOCKSTEP_DECLARE(name) Section name##_section();
LOCKSTEP_SECTIONS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::span<const Section> sections() {
#define LOCKSTEP_ROW(name) name##_section(),
  static const std::vector<Section> all = {LOCKSTEP_SECTIONS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return all;
}

bool is_of_search(const Report& report) {
  return report.command_line.starts_with("lockstep recommend ");
}

std::vector<std::string> step_labels(const Report& report) {
  std::vector<std::string> labels;
  for (int64_t step = 0; step < report.steps; ++step) labels.push_back(fmt::format("{}", step));
  return labels;
}

std::vector<WrittenSection> page_sections(const AdvisedReport& report, bool draws) {
  std::vector<WrittenSection> written;
  for (const bool leads : {true, false}) {
    for (const Section& section : sections()) {
      if (section.leads != leads || (section.only_html && !draws)) continue;
      Blocks blocks = section.write(report);
      if (!blocks.empty()) written.push_back({section.name, section.title, std::move(blocks)});
    }
  }
  return written;
}

std::string page_title(const Report& report) {
  return report.options.model;
}

std::string measured_note(const Report& report) {
  if (report.unmeasured_steps == 0) return "";
  return fmt::format(" ({} measured{})", report.measured_steps(),
                     report.counts_between() ? ", the others counted" : "");
}

std::string page_subtitle(const Report& report) {
  const size_t lanes = report.lanes.size() - report.twins.size();
  std::string text = counted(static_cast<uint64_t>(report.steps), "step");
  if (report.steps < report.options.steps) text += fmt::format(" of {}", report.options.steps);
  text += measured_note(report);
  text += ", " + counted(lanes, "lane");
  if (!report.twins.empty()) text += " and " + counted(report.twins.size(), "one-ulp twin");
  return text + ", " + report.path;
}

ReportPage report_page(const AdvisedReport& report, bool draws) {
  return {page_title(report), page_subtitle(report), page_sections(report, draws)};
}

constexpr std::string_view kWordsHint = "What the words mean: lockstep list words.";

std::string report_text(const AdvisedReport& report, bool summary_only, const TextStyle& style) {
  std::string out;
  for (const Section& section : sections()) {
    if (section.only_html || (summary_only && !section.in_summary)) continue;
    const Blocks blocks = section.write(report);
    if (blocks.empty()) continue;
    if (!out.empty()) out += "\n";
    out += heading_text(section.title) + to_text(blocks, style);
  }
  if (!summary_only) out += "\n" + to_text({paragraph(std::string(kWordsHint))}, style);
  return out;
}

}  // namespace lockstep

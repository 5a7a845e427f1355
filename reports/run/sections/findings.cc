// Every finding of every lane, the gravest first, with what follows from it. The first screen tells
// a lane's main finding; here are only its place and the layers that it affects.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/findings/finding_kinds.h"
#include "analysis/report/main_finding.h"
#include "reports/run/section.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"
#include "src/graph/op_text.h"

namespace lockstep {
namespace {

constexpr size_t kShownLayers = 3;  // of those a finding affects; the rest are counted

std::string finding_steps(const Finding& f) {
  if (f.kind == FindingKind::kLostConstant || f.kind == FindingKind::kSwamping) return "";
  return f.first_step == f.last_step ? fmt::format("{}", f.first_step)
                                     : fmt::format("{}..{}", f.first_step, f.last_step);
}

// Outside of modules the call of PyTorch: "pow", "torch.autograd.Function".
std::string consequence_name(const Site& site) {
  constexpr std::string_view kAten = "aten.";
  const bool is_outside =
      op_text(site.layer, site.op) == site.op || is_named_by_capture(site.layer, site.torch_op);
  const std::string call = is_outside ? torch_name(site) : "";
  if (call.empty()) return site.layer.empty() ? site.op : site.layer;
  return call.starts_with(kAten) ? call.substr(kAten.size()) : call;
}

std::string layers_text(const Report& report, const Finding& f) {
  std::vector<std::string> names;
  for (const int32_t id : f.consequences) {
    const std::string name = consequence_name(report.site(id));
    if (std::ranges::count(names, name) == 0) names.push_back(name);
  }
  const size_t shown = std::min(names.size(), kShownLayers);
  const std::string more =
      names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "";
  names.resize(shown);
  return join(names, ", ") + more;
}

// Findings need all statistics of a step. This is the worst of the steps that have counts alone.
constexpr double kShownCountedShare = 0.01;
std::string counted_text(const Report& report, const LaneReport& lane) {
  const CountedLoss& loss = lane.counted_loss;
  if (lane.is_twin() || loss.share < kShownCountedShare) return "";
  const auto is_told = [&](const Finding& f) { return f.site == loss.site; };
  if (std::ranges::any_of(lane.findings, is_told)) return "";
  return fmt::format(
      "- counted: {} of the nonzero values of {} were lost in step {}, which has no other "
      "statistics. Run with --statistics full to see what that does.",
      percent(loss.share), place_text(report.site(loss.site)), loss.step);
}

Blocks write_findings(const Report& report) {
  Blocks out;
  for (const LaneReport& lane : report.lanes) {
    const std::string counted = counted_text(report, lane);
    if (lane.findings.empty() && counted.empty()) continue;
    out.push_back(paragraph(fmt::format("{}:", lane.info.name)));
    for (const Finding& f : lane.findings) {
      const FindingKindRow& row = row_of(f.kind);
      const FindingContext context = context_of(report, lane, f);
      std::string text = fmt::format("- {}", row.name);
      const std::string steps = finding_steps(f);
      if (!steps.empty()) text += fmt::format(", step {}", steps);
      const bool is_told = has_sentence(lane) && &f == main_finding(lane);
      text += is_told ? fmt::format(": {}, see the verdict.", f.site < 0
                                                                  ? "the lane as a whole"
                                                                  : place_text(report.site(f.site)))
                      : ". " + row.sentence(context) + ".";
      if (!f.consequences.empty()) text += " Then: " + layers_text(report, f) + ".";
      out.push_back(paragraph(text));
    }
    if (!counted.empty()) out.push_back(paragraph(counted));
  }
  return out;
}

}  // namespace

Section findings_section() {
  return {.name = "findings", .title = "Findings", .write = write_findings};
}

}  // namespace lockstep

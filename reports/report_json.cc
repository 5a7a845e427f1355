// See report_json.h.
#include "reports/report_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/findings/finding_kinds.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json place(const Site& site) {
  return {{"layer", site.layer},
          {"op", site.op},
          {"torch_op", site.torch_op},
          {"role", to_string(site.role)},
          {"point", to_string(site.point)},
          {"node", site.node},
          {"source_line", site.source_line}};
}

std::string_view pass_of(const Report& report, const Finding& f) {
  if (f.site < 0) return "update";
  const Site& site = report.site(f.site);
  if (!is_in_graph(site) && !is_storage(site)) return "update";
  return f.backward ? "backward" : "forward";
}

ordered_json finding_json(const Report& report, const LaneReport& lane, const Finding& f) {
  const FindingKindRow& row = row_of(f.kind);
  const FindingContext context = context_of(report, lane, f);
  ordered_json out = {{"kind", row.name},
                      {"sentence", row.sentence(context)},
                      {"follows", row.follows(context)},
                      {"remedies", remedy_words(context)},
                      {"first_step", f.first_step},
                      {"last_step", f.last_step},
                      {"steps", f.steps},
                      {"skipped_steps", f.skipped_steps},
                      {"pass", pass_of(report, f)},
                      {"format", f.format},
                      {"value", number(f.value)},
                      {"limit", number(f.limit)},
                      {"share", number(f.share)},
                      {"loss_scale", number(f.scale)},
                      {"fitting_scale", number(f.fitting_scale)}};
  if (f.outlier_step >= 0) out["outlier_step"] = f.outlier_step;
  if (f.site >= 0) out["site"] = place(report.site(f.site));
  if (f.cause >= 0) out["cause"] = place(report.site(f.cause));
  if (f.spoilt >= 0) {
    out["spoilt"] = place(report.site(f.spoilt));
    out["spoilt_error"] = number(f.spoilt_error);
  }
  out["consequences"] = ordered_json::array();
  for (const int32_t site : f.consequences) out["consequences"].push_back(place(report.site(site)));
  return out;
}

ordered_json lane_json(const Report& report, const LaneReport& lane) {
  const LaneJudgement& j = lane.judgement;
  ordered_json out = {{"name", lane.info.name},
                      {"outcome", to_string(j.verdict)},
                      {"loss", number(j.tail_loss)},
                      {"gap", number(j.gap)},
                      {"batch_noise", number(j.batch_noise)},
                      {"chaos", number(j.chaos)},
                      {"chaos_bound", number(j.chaos_bound)},
                      {"seed_bound", number(j.seed_bound)},
                      {"correct_drop", number(j.correct_drop)},
                      {"correct_noise", number(j.correct_noise)},
                      {"correct_chaos_bound", number(j.correct_chaos_bound)},
                      {"correct_seed_bound", number(j.correct_seed_bound)},
                      {"answers", j.answers},
                      {"seeds", j.seeds},
                      {"broke_in", j.broke_in},
                      {"seeds_to_decide", j.seeds_to_decide},
                      {"findings_seed", lane.findings_seed},
                      {"accuracy", number(lane.accuracy)},
                      {"skipped_steps", lane.skips},
                      {"died_at", lane.info.died_at}};
  out["findings"] = ordered_json::array();
  for (const Finding& f : lane.findings) out["findings"].push_back(finding_json(report, lane, f));
  return out;
}

}  // namespace

std::string report_json(const Report& report) {
  ordered_json out = {{"format", "lockstep-report"},
                      {"format_version", kReportJsonVersion},
                      {"run", report.path},
                      {"command_line", report.command_line},
                      {"steps", report.steps},
                      {"seeds", report.seeds},
                      {"unfinished_seeds", report.unfinished_seeds}};
  out["lanes"] = ordered_json::array();
  for (const LaneReport& lane : report.lanes) out["lanes"].push_back(lane_json(report, lane));
  constexpr int kIndent = 1;
  return out.dump(kIndent, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep

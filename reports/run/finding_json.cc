// See finding_json.h.
#include "reports/run/finding_json.h"

#include <nlohmann/json.hpp>

#include "analysis/findings/finding_kinds.h"
#include "reports/writers/json_text.h"

namespace lockstep {

using nlohmann::ordered_json;

namespace {

std::string_view pass_of(const Report& report, const Finding& f) {
  if (f.site < 0) return "update";
  const Site& site = report.site(f.site);
  if (!is_in_graph(site) && !is_storage(site)) return "update";
  return f.backward ? "backward" : "forward";
}

}  // namespace

ordered_json place_json(const Site& site) {
  return {{"id", site.id},
          {"layer", site.layer},
          {"op", site.op},
          {"torch_op", site.torch_op},
          {"role", to_string(site.role)},
          {"point", to_string(site.point)},
          {"node", site.node},
          {"source_line", site.source_line}};
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
                      {"value", json_number(f.value)},
                      {"limit", json_number(f.limit)},
                      {"share", json_number(f.share)},
                      {"loss_scale", json_number(f.scale)},
                      {"fitting_scale", json_number(f.fitting_scale)}};
  if (f.outlier_step >= 0) out["outlier_step"] = f.outlier_step;
  if (f.site >= 0) out["site"] = place_json(report.site(f.site));
  if (f.cause >= 0) out["cause"] = place_json(report.site(f.cause));
  if (f.spoilt >= 0) {
    out["spoilt"] = place_json(report.site(f.spoilt));
    out["spoilt_error"] = json_number(f.spoilt_error);
  }
  out["consequences"] = ordered_json::array();
  for (const int32_t site : f.consequences)
    out["consequences"].push_back(place_json(report.site(site)));
  return out;
}

}  // namespace lockstep

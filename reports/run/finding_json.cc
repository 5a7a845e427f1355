// See finding_json.h.
#include "reports/run/finding_json.h"

#include <cmath>

#include "analysis/findings/finding_kinds.h"

namespace lockstep {
namespace {

std::string_view pass_of(const FindingOf& f) {
  const Site* site = site_of(f.report, f.finding.site);
  if (site == nullptr || (!is_in_graph(*site) && !is_storage(*site))) return "update";
  return f.finding.backward ? "backward" : "forward";
}

}  // namespace

const Site* site_of(const Report& report, int32_t id) {
  return id < 0 ? nullptr : &report.site(id);
}

const JsonObject<Site>& json_object(const Site*) {
  static const JsonObject<Site> keys(
      "place", {
                   {"id", &Site::id, "index into the run file's site table"},
                   {"layer", &Site::layer, "module path; empty for what is in no module"},
                   {"op", &Site::op, "of the step graph"},
                   {"torch_op", &Site::torch_op,
                    "PyTorch's call, `aten.addmm.default`; empty for built-in models"},
                   {"role", [](auto& s) { return to_string(s.role); }},
                   {"point", [](auto& s) { return to_string(s.point); },
                    "`operand`, `output`, `accumulator`, ..."},
                   {"node", &Site::node, "of the step graph"},
                   {"source_line", &Site::source_line, "of your code; empty for built-in models"},
               });
  return keys;
}

const JsonObject<FindingOf>& json_object(const FindingOf*) {
  static const JsonObject<FindingOf> keys(
      "finding",
      {
          {"kind", [](auto& f) { return row_of(f.finding.kind).name; },
           "from the table in [findings.md](findings.md#kinds)"},
          {"sentence", [](auto& f) { return row_of(f.finding.kind).sentence(f.context()); },
           "what the report says"},
          {"follows", [](auto& f) { return row_of(f.finding.kind).follows(f.context()); },
           "what follows from it; may be empty"},
          {"remedies", [](auto& f) { return remedy_words(f.context()); },
           "candidates, not run; `recommend --fix` and `--try` run them"},
          {"first_step", [](auto& f) { return f.finding.first_step; }},
          {"last_step", [](auto& f) { return f.finding.last_step; }},
          {"steps", [](auto& f) { return f.finding.steps; }, "in which it happened"},
          {"skipped_steps", [](auto& f) { return f.finding.skipped_steps; },
           "of these, discarded by the loss scaler"},
          {"pass", pass_of, "", {"forward", "backward", "update"}},
          {"format", [](auto& f) { return f.finding.format; }, "of the site"},
          {"value", [](auto& f) { return f.finding.value; },
           "the largest magnitude. Of *no scaler*: the gradient's largest magnitude in FP32. Of "
           "*cancellation* and *wrong loss*: the lane's loss; `null`: it is right"},
          {"limit", [](auto& f) { return f.finding.limit; },
           "the format's largest number. Of *no scaler*: its smallest. Of *cancellation* and "
           "*wrong loss*: the reference's loss"},
          {"factor", [](auto& f) { return f.finding.factor; },
           "of *cancellation*: how many times the operands are larger than the result, or by how "
           "much their relative error was multiplied"},
          {"share", [](auto& f) { return f.finding.share; }, "0..1, of what the kind's row names"},
          {"loss_scale", [](auto& f) { return f.finding.scale; }, "within `value`"},
          {"fitting_scale", [](auto& f) { return f.finding.fitting_scale; },
           "of *no scaler*: a static loss scale that would keep the gradients; `null`: there is "
           "none"},
          {"outlier_step", [](auto& f) { return known(f.finding.outlier_step); },
           "of underflow: the step whose single large batch lowered the scale; absent: none did"},
          {"site", [](auto& f) { return site_of(f.report, f.finding.site); },
           "absent: the lane as a whole"},
          {"cause", [](auto& f) { return site_of(f.report, f.finding.cause); },
           "the operand that caused it; absent: none"},
          {"rounded", [](auto& f) { return site_of(f.report, f.finding.rounded); },
           "whose rounding made the cause what it is, or was amplified; absent: none"},
          {"spoilt", [](auto& f) { return site_of(f.report, f.finding.spoilt); },
           "of underflow in a gradient: the weight gradient made from it that has lost more; "
           "absent: none"},
          {"spoilt_error",
           only_if([](auto& f) { return std::isfinite(f.finding.spoilt_error); },
                   [](auto& f) { return f.finding.spoilt_error; }),
           "its relative error. Of *cancellation* and *wrong loss*: of all weight gradients"},
          {"consequences",
           [](auto& f) {
             std::vector<Site> sites;
             for (const int32_t id : f.finding.consequences) sites.push_back(f.report.site(id));
             return sites;
           },
           "that went wrong because of it, one for each layer"},
      });
  return keys;
}

}  // namespace lockstep

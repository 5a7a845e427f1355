// The keys of the run as a whole; lane_json.h, views_json.h and finding_json.h have the rest.
#include "reports/run/report_json.h"

#include "reports/run/lane_json.h"
#include "reports/run/views_json.h"

namespace lockstep {

const JsonObject<VerifiedGate>& json_object(const VerifiedGate*) {
  static const JsonObject<VerifiedGate> keys(
      "", {
              {"name", &VerifiedGate::name, "`V1`"},
              {"subject", &VerifiedGate::subject, "what was compared"},
              {"status", &VerifiedGate::status, "`PASS`, `FAIL` or why it did not run"},
              {"figure", &VerifiedGate::figure, "the largest distance found, in words"},
          });
  return keys;
}

const JsonObject<Verification>& json_object(const Verification*) {
  static const JsonObject<Verification> keys(
      "", {
              {"passed", &Verification::passed, "false: a gate failed, or none could be judged"},
              {"lockstep_version", &Verification::lockstep_version},
              {"created_utc", &Verification::created_utc},
              {"gates", &Verification::gates},
          });
  return keys;
}

const JsonObject<Report>& json_object(const Report*) {
  static const JsonObject<Report> keys(
      "report",
      {
          format_key<Report>("lockstep-report"),
          version_key<Report>(kReportJsonVersion),
          {"run", &Report::path, "path of the run file"},
          {"command_line", &Report::command_line, "that wrote it"},
          {"model", [](auto& r) { return r.options.model; },
           "the built-in model, or the path of the capture"},
          {"data", [](auto& r) { return r.data.empty() ? r.options.data : r.data; },
           "where batches come from"},
          {"mode",
           [](auto& r) { return r.options.mode == LaneMode::kFree ? "free" : "synced"; },
           "`free`: every lane keeps its own weights; `synced`: every step starts from the "
           "reference's",
           {"free", "synced"}},
          {"damage", [](auto& r) { return filled(r.damage); },
           "with `--damaged`: the first row that is not as it was written; the report is of the "
           "steps before it. Absent: none"},
          {"steps", &Report::steps, "recorded"},
          {"steps_asked", [](auto& r) { return r.options.steps; },
           "more than `steps` if the run was stopped"},
          {"measured_steps", &Report::measured_steps,
           "of `steps`: with all statistics of sites; fewer with `--statistics-every`. With "
           "`--statistics health`, `lanes[].layers` covers the others, too"},
          {"seeds", &Report::seeds, "those that the outcomes rest on"},
          {"unfinished_seeds", &Report::unfinished_seeds,
           "asked for and left out, because they have fewer steps or are missing"},
          {"environment", &Report::environment, "CPU, compiler, flags, libraries"},
          {"capture_sha256", [](auto& r) { return filled(r.options.capture_hash); },
           "of the capture that was replayed; absent: a built-in model"},
          {"verification", &Report::verification,
           "what `lockstep verify` said of the capture; absent: it did not run"},
          {"loss_scales",
           [](auto& r) {
             std::vector<ScaleRange> out;
             for (const RangeTable& ranges : r.ranges) out.push_back({ranges});
             return out;
           },
           "for every format of 16 bits that a lane has: which layers to keep in FP32 and which "
           "loss scales fit, by the ranges of the reference's values"},
          {"costs", [](auto& r) { return CostsOf{r}; }, "estimates by roofline"},
          {"lanes", [](auto& r) { return each<LaneOf>(r, r.lanes); }, "the reference first"},
      });
  return keys;
}

std::string report_json(const Report& report) {
  return json_page(json_value(report));
}

}  // namespace lockstep

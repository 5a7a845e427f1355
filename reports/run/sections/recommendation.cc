// What `recommend` answered, where it wrote the report, and what its search went by.
#include "reports/run/section.h"

namespace lockstep {
namespace {

Blocks write_recommendation(const AdvisedReport& report) {
  return report.answer;
}

Blocks write_sensitivity(const AdvisedReport& report) {
  return report.search;
}

}  // namespace

Section recommendation_section() {
  return {.name = "recommendation",
          .title = "Recommendation",
          .write = write_recommendation,
          .leads = true};
}

Section sensitivity_section() {
  return {
      .name = "sensitivity", .title = "How sensitive the layers are", .write = write_sensitivity};
}

}  // namespace lockstep

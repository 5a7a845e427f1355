// What `recommend` answered and where it wrote the report.
#include "reports/run/section.h"

namespace lockstep {
namespace {

Blocks write_recommendation(const AdvisedReport& report) {
  return report.answer;
}

}  // namespace

Section recommendation_section() {
  return {.name = "recommendation",
          .title = "Recommendation",
          .write = write_recommendation,
          .leads = true};
}

}  // namespace lockstep

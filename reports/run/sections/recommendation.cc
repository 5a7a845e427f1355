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
  constexpr bool kLeads = true;
  return {"recommendation", "Recommendation", false, write_recommendation, kLeads};
}

Section sensitivity_section() {
  return {"sensitivity", "How sensitive the layers are", false, write_sensitivity};
}

}  // namespace lockstep

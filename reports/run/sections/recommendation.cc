// What `recommend` answered, where it wrote the report, and what its search went by.
#include "reports/run/section.h"

namespace lockstep {
namespace {

Blocks write_recommendation(const Report& report) {
  return report.recommendation.answer;
}

Blocks write_sensitivity(const Report& report) {
  return report.recommendation.search;
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

// What `recommend` answered, where it wrote the report.
#include "reports/section.h"

namespace lockstep {
namespace {

Blocks write_recommendation(const Report& report) {
  return report.recommendation;
}

}  // namespace

Section recommendation_section() {
  constexpr bool kLeads = true;
  return {"recommendation", "Recommendation", false, write_recommendation, kLeads};
}

}  // namespace lockstep

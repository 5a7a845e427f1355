// What the search of `recommend` went by.
#include "reports/run/section.h"

namespace lockstep {
namespace {

Blocks write_sensitivity(const AdvisedReport& report) {
  return report.search;
}

}  // namespace

Section sensitivity_section() {
  return {
      .name = "sensitivity", .title = "How sensitive the layers are", .write = write_sensitivity};
}

}  // namespace lockstep

// A check's result as JUnit XML, which CI systems show as tests. A test case is a metric in a lane.
//   failure: it regressed
//   error:   it could not be evaluated, because the run lacks it
//   skipped: nothing was judged, or a rule ignores its alarms
// Source: the schema that Jenkins and GitLab read, github.com/testmoapp/junitxml.
#pragma once

#include <string>

#include "analysis/check/check_result.h"

namespace lockstep {

std::string check_junit(const CheckResult& result);

}  // namespace lockstep

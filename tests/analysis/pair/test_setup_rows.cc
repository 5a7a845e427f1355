// Every option that affects the numbers is a difference of two set-ups, and no other is.
#include <doctest/doctest.h>

#include <algorithm>

#include "analysis/pair/settings.h"
#include "tests/support/changed_options.h"

namespace lockstep {
namespace {

TEST_CASE("a change of any option that affects the numbers is named, and of no other") {
  const RunOptions original;
  for (const RunOption& row : run_options()) {
    CAPTURE(row.option);
    CAPTURE(row.key);
    RunOptions changed;
    testing::change(row, changed);
    const auto differences = setup_differences(changed, original);
    CHECK(differences.empty() == (row.effect == OptionEffect::kNothing));
    CHECK(setup_differences(changed, original, row.effect).size() == differences.size());
    for (const SetupDifference& d : differences) CHECK(d.run != d.baseline);
  }
}

TEST_CASE("sizes given as the model has them are no difference") {
  RunOptions given, changed;
  given.model = changed.model = "mlp";
  const RunOptions original = given;
  given.sizes["hidden1"] = 128;
  changed.sizes["hidden1"] = 24;
  CHECK(setup_differences(given, original).empty());
  const auto differences = setup_differences(changed, original);
  REQUIRE(differences.size() == 1);
  CHECK(difference_text(differences[0]) == "sizes: 'hidden1=24' here, '' in the baseline");
}

}  // namespace
}  // namespace lockstep

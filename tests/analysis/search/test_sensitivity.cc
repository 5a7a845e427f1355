// Scores against what is measured, and the rank correlation by hand.
#include "analysis/search/sensitivity.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

TEST_CASE("rank correlation by hand, with a tie") {
  const std::vector<double> a = {1, 2, 3, 4};
  CHECK(rank_correlation(a, std::vector<double>{10, 20, 30, 40}) == doctest::Approx(1));
  CHECK(rank_correlation(a, std::vector<double>{4, 3, 2, 1}) == doctest::Approx(-1));
  // Ranks 0, 1.5, 1.5, 3: sum of products 4.5 / sqrt(5 * 4.5).
  CHECK(rank_correlation(a, std::vector<double>{0, 7, 7, 9}) ==
        doctest::Approx(4.5 / std::sqrt(5 * 4.5)));
  CHECK(std::isnan(rank_correlation(a, std::vector<double>{1, 1, 1, 1})));
  CHECK(std::isnan(rank_correlation(std::vector<double>{1, 2}, std::vector<double>{1, 2})));
}

TEST_CASE("a score holds every layer asked for, by role, and a narrower format has a larger one") {
  const TempDir dir;
  RunOptions options = small_run();
  options.lanes = {"fp32", "torch-autocast-bf16", "fp8-current"};
  const RunFile run = record(dir.file("run.h5"), options);
  const Network network = read_network(run);
  REQUIRE(network.linear == std::vector<std::string>{"fc1", "fc2", "fc3"});
  SensitivityTable bf16, fp8;
  add_scores(run, 1, "bf16", network, network.linear, bf16);
  add_scores(run, 2, "fp8", network, network.linear, fp8);
  REQUIRE(bf16.layers.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CAPTURE(bf16.layers[i].layer);
    CHECK(bf16.layers[i].score > 0);
    CHECK(fp8.layers[i].score > bf16.layers[i].score);
  }
  CHECK(bf16.batch_noise > 0);
  int factors = 0;
  for (const RoleSensitivity& row : fp8.roles) {
    CHECK(row.format == "fp8");
    if (row.role == Role::kAccumulator) CHECK(row.terms > 0);
    factors += row.gradient_error > 0;
    // E4M3 has 4 bits, E5M2 3: half an ulp of either is at most 2^-3 of a value.
    CHECK(row.gradient_error <= 2 * 0.125);
  }
  CHECK(factors == 6);  // x and dy of each layer
  // In bf16, too, where most factors come rounded from the op before: no cast of their own.
  CHECK(std::ranges::count_if(bf16.roles, [](auto& row) { return row.gradient_error > 0; }) >= 5);
}

}  // namespace
}  // namespace lockstep

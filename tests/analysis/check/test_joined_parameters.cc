// Fused and split parameters, by hand: the values decide, not the names.
#include "analysis/check/joined_parameters.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace lockstep {
namespace {

constexpr double kTolerance = 0x1p-20;

RunFacts run_of(std::vector<ParameterFacts> parameters) {
  RunFacts run;
  run.parameters = std::move(parameters);
  return run;
}

const RunFacts& fused() {
  static const RunFacts run = run_of({{"a.qkv.weight", "6x4"}, {"a.qkv.bias", "6"}});
  return run;
}
const RunFacts& split_up() {
  static const RunFacts run = run_of({{"a.q.weight", "2x4"},
                                      {"a.q.bias", "2"},
                                      {"a.k.weight", "2x4"},
                                      {"a.k.bias", "2"},
                                      {"a.v.weight", "2x4"},
                                      {"a.v.bias", "2"}});
  return run;
}

std::vector<JoinedParameter> joined(const RunFacts& before, const RunFacts& after,
                                    const std::vector<double>& octaves_before,
                                    const std::vector<double>& octaves_after) {
  const Pairing none(before.parameters.size(), after.parameters.size());
  return joined_parameters(before, after, none, octaves_before, octaves_after, kTolerance);
}

TEST_CASE("parts with the whole's sum of squares are the whole, in both directions") {
  // Mean squares 1, 4 and 1 of the weights: 2 on average. The biases are 0.
  const double nan = std::nan("");
  const std::vector<double> parts = {0, nan, 1, nan, 0, nan}, whole = {0.5, nan};
  const auto of_whole = joined(fused(), split_up(), whole, parts);
  REQUIRE(of_whole.size() == 2);
  CHECK(of_whole[0].before == std::vector<size_t>{0});
  CHECK(of_whole[0].after == std::vector<size_t>{0, 2, 4});
  CHECK(of_whole[1].after == std::vector<size_t>{1, 3, 5});
  const auto of_parts = joined(split_up(), fused(), parts, whole);
  REQUIRE(of_parts.size() == 2);
  CHECK(of_parts[0].before == std::vector<size_t>{0, 2, 4});
  CHECK(of_parts[0].after == std::vector<size_t>{0});
}

TEST_CASE("other values or another number of elements are other parameters") {
  const double nan = std::nan("");
  CHECK(joined(fused(), split_up(), {0.5, nan}, {0, 0, 1.001, 0, 0, 0}).empty());
  const RunFacts more = run_of({{"a.qkv.weight", "7x4"}, {"a.qkv.bias", "7"}});
  CHECK(joined(more, split_up(), {0.5, nan}, {0, nan, 1, nan, 0, nan}).empty());
}

TEST_CASE("the site of a stored value: by layer and shape, in the order of the parameters") {
  RunFacts run = run_of({{"a.weight", "3"}, {"a.bias", "3"}, {"scale", "3"}});
  for (const char* layer : {"", "a", "a"}) {
    SiteFacts site;
    site.layer = layer;
    site.op = site.point = "storage";
    site.role = "weight";
    site.shape = "3";
    run.sites.push_back(site);
  }
  CHECK(stored_site(run, 0) == 1);
  CHECK(stored_site(run, 1) == 2);
  CHECK(stored_site(run, 2) == 0);
  run.parameters[2].shape = "4";
  CHECK(stored_site(run, 2) == -1);
}

}  // namespace
}  // namespace lockstep

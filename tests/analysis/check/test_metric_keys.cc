// The names of a baseline's numbers: each its own, and readable.
#include "analysis/check/metric_keys.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

SiteFacts site(const std::string& op, const std::string& role, const std::string& point, int index,
               const std::string& shape) {
  SiteFacts made;
  made.layer = "fc";
  made.op = op;
  made.role = role;
  made.point = point;
  made.index = index;
  made.shape = shape;
  return made;
}

TEST_CASE("weight and bias, operands, and the rest have labels of their own") {
  RunFacts run;
  run.parameters = {{"fc.weight", "3x2"}, {"fc.bias", "3"}, {"fc.inner.weight", "4"}};
  run.sites = {site("storage", "weight", "storage", 0, "3x2"),
               site("storage", "weight", "storage", 0, "3"),
               site("linear", "activation", "output", 0, "2x3"),
               site("add", "activation", "operand", 0, "2x3"),
               site("add", "activation", "operand", 1, "2x3"),
               site("storage", "buffer", "storage", 0, "3"),
               site("storage", "buffer", "storage", 0, "3")};
  CHECK(unique_labels(run) ==
        std::vector<std::string>{"fc storage weight storage (weight)",
                                 "fc storage weight storage (bias)", "fc linear activation output",
                                 "fc add activation operand 1", "fc add activation operand 2",
                                 "fc storage buffer storage 1 (1 of 2)",
                                 "fc storage buffer storage 1 (2 of 2)"});
}

TEST_CASE("of a recorded network every key is its own") {
  const TempDir dir;
  RunOptions options = small_run();
  options.model = "lenet";
  const RunFacts run = facts_of(record(dir.file("run.h5"), options));
  const std::vector<std::string> labels = unique_labels(run);
  CHECK(labels.size() > 50);
  CHECK(std::set<std::string>(labels.begin(), labels.end()).size() == labels.size());
  CHECK(std::ranges::count(labels, "conv1 conv2d weight operand (bias)") == 1);
  CHECK(std::ranges::count(labels, "conv1 optimizer update operand (weight)") == 1);
}

}  // namespace
}  // namespace lockstep

// See versions.h.
#include "analysis/faithful/versions.h"

#include <algorithm>

#include "analysis/faithful/chaos.h"

namespace lockstep {

bool is_large(const Capture& capture) {
  constexpr int64_t kManyValues = int64_t{1} << 22;
  return std::ranges::any_of(capture.graphs, [](const Graph& graph) {
    int64_t values = 0;
    for (const Node& node : graph.nodes) {
      for (const TensorType& output : node.outputs) values += element_count(output.shape);
    }
    return values > kManyValues;
  });
}

Version version_of(int i) {
  if (i == 0) return {.moves_weights = true};
  const int order = (i - 1) / 2 % kOtherOrders;
  const auto signs = static_cast<uint64_t>(i);
  if (i >= kPlainVersions) return {.order = order, .moves = {signs, kCoarseUlps}};
  if (i % 2 == 1) return {.order = order};
  return {.moves = {signs, 1}};
}

ComputedStep run_version(const Version& version, const Capture& capture, const Policy& policy,
                         const CapturedStep& step, const Tensors& values) {
  CapturedStepRunner runner(capture, policy, /*is_fp64=*/false, version.kernels());
  if (version.moves.ulps != 0) {
    return runner.run_moved(step, values, step.scale_before, version.moves);
  }
  if (!version.moves_weights) return runner.run(step, values, step.scale_before);
  return runner.run(step, twin_of(capture.graphs.front(), values), step.scale_before);
}

}  // namespace lockstep

// From a run file's 50-step histograms to one sample per site.
#include "analysis/ranges/range_samples.h"

#include <algorithm>
#include <set>

#include "src/graph/composed_ops.h"
#include "src/graph/json.h"
#include "src/graph/op.h"
#include "src/record/run/play.h"

namespace lockstep {
namespace {

constexpr int kFirstMaskBin = 127 + 16;  // FP32's exponent field of 2^16

bool is_of_interest(const Site& site, const Graph& graph, const std::set<std::string>& inner_nodes,
                    const Policy& base) {
  if (!may_be_low(site.role)) return false;
  if (site.point == Point::kAccumulator || !is_in_graph(site) || is_on_other_path(site)) {
    return false;
  }
  const Node& node = graph.node(site.node);
  const Node& forward = node.is_backward() ? graph.node(node.forward_node) : node;
  return !inner_nodes.contains(forward.id) &&
         base.class_of(listed_name(forward, find_op(forward.op))) != CastClass::kFp32;
}

bool is_function(const Site& site, const Graph& graph) {
  const Node& node = graph.node(site.node);
  return (node.is_backward() ? graph.node(node.forward_node) : node).layer.empty();
}

}  // namespace

bool may_be_low(Role role) {
  switch (role) {
    case Role::kInput:
    case Role::kWeight:
    case Role::kActivation:
    case Role::kGradActivation:
    case Role::kGradWeight:
      return true;
    default:
      return false;
  }
}

std::vector<int32_t> sites_in_range(const RunFile& run, const Policy& base) {
  const Graph graph = graph_from_json(run.graph_json());
  const std::set<std::string> inner_nodes = composed_inner_nodes(graph);  // FP32 in every policy
  std::vector<int32_t> found;
  for (const Site& site : run.sites().sites) {
    if (is_of_interest(site, graph, inner_nodes, base)) found.push_back(site.id);
  }
  return found;
}

void ZeroTally::on_step(const StepRecord& record) {
  if (!record.is_measured) return;
  const std::vector<SiteRecord>& sites = record.lanes[kReferenceIndex].sites;
  for (size_t i = 0; i < sites.size(); ++i) zeros_[i] += sites[i].stats.source_zero;
}

std::vector<RangeSample> range_samples(const RunFile& run, const Policy& base,
                                       const std::vector<uint64_t>& zeros) {
  const std::vector<uint64_t> histogram = run.total_histogram(kReferenceIndex);
  const Graph graph = graph_from_json(run.graph_json());
  std::vector<RangeSample> samples;
  for (const int32_t of_interest : sites_in_range(run, base)) {
    const auto id = static_cast<size_t>(of_interest);
    const Site& site = run.sites().sites[id];
    RangeSample sample{.layer = site.layer,
                       .label = site.label(),
                       .role = site.role,
                       .scaled = site.scaled,
                       .is_function = is_function(site, graph),
                       .zeros = zeros[id]};
    const auto begin = histogram.begin() + static_cast<int64_t>(id * kHistogramBins);
    std::copy(begin, begin + kHistogramBins, sample.histogram.begin());
    if (site.stat_exempt) {  // numbers of a mask: beyond FP16's range, as in src/graph/site.cc
      std::fill(sample.histogram.begin() + kFirstMaskBin, sample.histogram.end(), 0);
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<RangeSample> range_samples(const RunFile& run, const Policy& base) {
  ZeroTally tally(run.sites().sites.size());
  play_reference(run, tally);
  return range_samples(run, base, tally.zeros());
}

}  // namespace lockstep

// Shared by the tests of lowering: a small network, and a lowered step that shows the formats an op
// reads and writes.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/lower/lower.h"
#include "src/policy/find_policy.h"
#include "tests/support/refusal.h"

namespace lockstep {

using testing::has;

// conv, bn, relu, pool, flatten, linear, cross entropy: every cast class and every kind of operand.
inline Graph small_net() {
  GraphBuilder b("small");
  Value x = b.input("images", {{2, 1, 6, 6}});
  const Value labels = b.input("labels", {{2}, ElementType::kInt});
  x = b.conv2d("conv1", x, 2, /*kernel=*/3);  // (2,2,4,4)
  x = b.relu("relu1", b.batch_norm("bn1", x));
  x = b.max_pool2d("pool1", x, 2, 2);  // (2,2,2,2)
  x = b.flatten("flatten", x);         // (2,8)
  x = b.linear("fc1", x, 3);
  b.name_output("logits", x);
  b.set_loss(b.op("cross_entropy", {x, labels}, {}, "loss"));
  return b.finish();
}

struct Lowered {
  Graph graph;
  SiteTable sites;
  Program program;

  // The one kOp instruction of a node with this op in this layer.
  const Instruction& op(const std::string& layer, const std::string& name) const {
    for (const Instruction& i : program.instructions) {
      const Node& node = graph.nodes[i.node];
      if (i.kind == InstructionKind::kOp && node.layer == layer && node.op == name) return i;
    }
    throw std::logic_error("no op " + name + " in " + layer);
  }
  const std::string& format(int value) const { return program.values[value].format->name; }
  // Formats an op reads, e.g. "fp16 fp16 fp32"; integers as "int".
  std::string reads(const Instruction& i) const {
    std::vector<std::string> names;
    for (int v : i.inputs) names.push_back(program.values[v].format ? format(v) : "int");
    return join(names, " ");
  }
  std::string writes(const Instruction& i) const {
    std::vector<std::string> names;
    for (int v : i.outputs) names.push_back(program.values[v].format ? format(v) : "int");
    return join(names, " ");
  }
  size_t count(InstructionKind kind) const {
    size_t n = 0;
    for (const Instruction& i : program.instructions) n += i.kind == kind;
    return n;
  }
};

inline Lowered lower_net(const Graph& forward, const Policy& policy, bool fp64 = false) {
  Lowered out{differentiate(forward), {}, {}};
  out.sites = make_sites(out.graph, 1);
  out.program = lower(out.graph, out.sites, policy, fp64);
  return out;
}
inline Lowered lower_text(const Graph& forward, const std::string& toml) {
  return lower_net(forward, parse_policy(toml, "test.toml"));
}
inline std::string problems_of(const Graph& forward, const std::string& toml) {
  return testing::problems_in([&] { lower_text(forward, toml); });
}

}  // namespace lockstep

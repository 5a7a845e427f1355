// Writes a policy for another program and a graph, for the comparisons with PyTorch and its
// libraries. Usage: recipe_tool POLICY GRAPH.json KIND FILE; prints what the file does not do.
#include <fmt/format.h>

#include <vector>

#include "reports/emit/emit_kinds.h"
#include "src/core/text_file.h"
#include "src/graph/json.h"
#include "src/policy/find_policy.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  const std::vector<std::string> args(argv + 1, argv + argc);
  const std::string& file = args.at(3);
  std::vector<std::string> unsaid;
  const EmitFacts facts{.policy = find_policy(args.at(0)),
                        .graph = graph_from_json(read_text_file(args.at(1))),
                        .model = "",
                        .evidence = ""};
  write_text_file_atomically(file,
                             find_emit_kind(args.at(2)).write(facts, emitted_module(file), unsaid));
  for (const std::string& sentence : unsaid) fmt::print("{}\n", sentence);
}

// Writes the Python module of a policy for a graph, for the comparisons with PyTorch.
// Usage: recipe_tool POLICY GRAPH.json MODULE.py
#include <vector>

#include "reports/pytorch/pytorch_module.h"
#include "src/core/text_file.h"
#include "src/graph/json.h"
#include "src/policy/find_policy.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  const std::vector<std::string> args(argv + 1, argv + argc);
  std::vector<std::string> unsaid;
  const PytorchRecipe recipe =
      pytorch_recipe(find_policy(args.at(0)), graph_from_json(read_text_file(args.at(1))), unsaid);
  write_text_file_atomically(args.at(2), pytorch_module(recipe, unsaid));
}

// lockstep explain: a model lowered by a policy, as text or as JSON.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/core/error.h"
#include "src/graph/autodiff.h"
#include "src/graph/lower.h"
#include "src/train/data/dataset.h"
#include "src/train/lane.h"
#include "src/train/models/model.h"

namespace lockstep {
namespace {

struct ExplainArgs {
  std::string model, policy, data, size_words, backward = "joint";
  int64_t batch = 64;
  bool json = false;
  std::map<std::string, double> sizes;
};

constexpr int kOptimizerStates = 1;  // momentum; their number changes no op of the program

int explain(const ExplainArgs& args, ProblemList& problems) {
  const Model* found = nullptr;
  LaneDescription lane;
  collect_problems(problems, [&] { found = &find_model(args.model); });
  collect_problems(problems, [&] { lane = describe_lane(args.policy); });
  problems.throw_if_any();
  const Model& model = *found;
  const std::string spec = args.data.empty() ? std::string(model.default_data) : args.data;
  const ModelSizes sizes = complete_sizes(model, args.sizes);
  const auto data = open_data_set(spec, data_request(model, sizes, /*seed=*/1));
  const Graph forward =
      model.build({args.batch, data->image_shape(), data->class_count(), sizes}, /*training=*/true);
  const Graph step =
      args.backward == kBackwardPerLoss ? differentiate_per_loss(forward) : differentiate(forward);
  const SiteTable sites = make_sites(step, kOptimizerStates);
  const Policy& policy = lane.policy;
  for (const std::string& note : policy.notes) fmt::print(stderr, "lockstep: note: {}\n", note);
  const Program program = lower(step, sites, policy, container_of(lane) == Container::kF64);
  if (args.json) {
    fmt::print("{}\n", to_json(program, step));
    return kExitFine;
  }
  const std::string target = lane.target.empty() ? "" : " on " + lane.target;
  fmt::print("{} under {}{}: {}\n\n{}", args.model, policy.label(), target, policy.help,
             to_text(program, step, sites));
  return kExitFine;
}

}  // namespace

std::function<int()> declare_explain(CLI::App& app) {
  auto args = std::make_shared<ExplainArgs>();
  app.add_option("MODEL", args->model, "a built-in model")->type_name("")->required();
  app.add_option("--policy", args->policy,
                 "a preset (see `lockstep list presets`) or my.toml, with @TARGET if wanted")
      ->type_name("P")
      ->required();
  app.add_option("--data", args->data, "whose image shape is used [the model's default]")
      ->type_name("SPEC");
  const ArgumentChecks checks("explain");
  checks.named_numbers(
      app.add_option("--size", args->size_words, "the model's sizes, e.g. layers=2,width=64")
          ->type_name("NAME=X,..."),
      args->sizes);
  checks.whole(app.add_option("--batch", args->batch, "examples per step")
                   ->type_name("N")
                   ->capture_default_str(),
               1, kLargestBatch);
  declare_backward(app, checks, args->backward);
  app.add_flag("--json", args->json, "print JSON instead of a table");
  return [args, checks] { return explain(*args, checks.problems()); };
}

}  // namespace lockstep

// lockstep explain: a model lowered by a policy, as text or as JSON, or the policy for other
// programs.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "reports/writers/number_text.h"
#include "reports/writers/recipe_svg.h"
#include "src/capture/captured_loop.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/cli/arguments/emit_arguments.h"
#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/error.h"
#include "src/core/text_file.h"
#include "src/data/dataset.h"
#include "src/data/sources.h"
#include "src/graph/autodiff.h"
#include "src/lower/lower.h"
#include "src/lower/product_recipe.h"
#include "src/lower/program_text.h"
#include "src/models/model.h"
#include "src/record/capture/capture_reader.h"
#include "src/train/lane/lane_name.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

struct ExplainArgs {
  RunOptions options;
  std::string policy;
  int64_t graph = 0;
  EmitWords emitted;
  bool json = false, overwrite = false;
  std::string svg;  // a file, or ""
};

// The graph to lower, and the text printed before it.
struct Explained {
  Graph forward;
  std::string about;
  bool trains = true;
};

constexpr int kOptimizerStates = 1;  // momentum; the number of states changes no op of the program
constexpr int64_t kMainGraph = -1;   // --graph was not given

Explained built_in(const ExplainArgs& args) {
  const Model& model = find_model(args.options.model);
  const std::string spec =
      args.options.data.empty() ? std::string(model.default_data) : args.options.data;
  const ModelSizes sizes = complete_sizes(model, args.options.sizes);
  DataRequest request = data_request(model, sizes, /*seed=*/1);
  request.is_for_shapes = true;
  const auto data = open_data_set(spec, request);
  return {model.build({args.options.batch, data->image_shape(), data->class_count(), sizes},
                      /*training=*/true),
          "", /*trains=*/true};
}

// "graph 1: batches of [2, 1, 8, 8], [2], 1 of 8 micro-batches"
std::string graph_line(const Capture& capture, size_t number) {
  uint64_t all = 0, here = 0;
  for (const CapturedStep& step : capture.steps) {
    for (const CapturedMicroBatch& micro : step.micro) {
      ++all;
      here += static_cast<size_t>(micro.graph) == number ? 1 : 0;
    }
  }
  return fmt::format("graph {}: batches of {}, {} of {} micro-batches", number,
                     batch_text(capture.graphs[number]), here, all);
}

Explained captured(const ExplainArgs& args) {
  const Capture capture = read_capture(args.options.model, CaptureUse::kReplay);
  const std::vector<size_t> graphs = graphs_in_use(capture, /*steps=*/0);
  const auto number = args.graph == kMainGraph ? graphs.at(0) : static_cast<size_t>(args.graph);
  if (number >= capture.graphs.size()) {
    throw InputError(fmt::format("--graph {}: capture '{}' has {}, counted from 0", args.graph,
                                 args.options.model, capture.graphs.size()));
  }
  std::string about = fmt::format("{}: {} of {}, PyTorch {} on {}\n", args.options.model,
                                  counted(capture.steps.size(), "step"), capture.model_class,
                                  capture.torch_version, capture.device);
  for (size_t k = 0; k < capture.graphs.size(); ++k) {
    about += graph_line(capture, k) + (k == number ? ": below\n" : "\n");
  }
  return {captured_graph(capture, number), about + "\n", !is_inference(capture)};
}

int explain(const ExplainArgs& args, ProblemList& problems) {
  Explained explained;
  LaneDescription lane;
  collect_problems(problems, [&] {
    explained = is_capture(args.options.model) ? captured(args) : built_in(args);
  });
  collect_problems(problems, [&] { lane = describe_lane(args.policy); });
  CommandFiles files;
  files.input("MODEL", args.options.model);
  files.input("--policy", args.policy);
  check_emit(args.emitted, args.overwrite, files, problems);
  check_text_output("--svg", args.svg, ".svg", args.overwrite, problems);
  files.output("--svg", args.svg);
  files.check(problems);
  problems.throw_if_any();
  const Graph step = args.options.backward_per_loss ? differentiate_per_loss(explained.forward)
                                                    : differentiate(explained.forward);
  const SiteTable sites = make_sites(step, kOptimizerStates);
  const Policy& policy = lane.policy;
  for (const std::string& note : policy.notes) print_note("note: " + note);
  const Program program = lower(step, sites, policy, container_of(lane) == Container::kF64);
  if (!args.svg.empty()) {
    write_text_file_atomically(args.svg,
                               recipe_svg(product_recipes(program, step),
                                          fmt::format("linear layers under {}", policy.label())));
  }
  if (!args.emitted.empty()) {
    emit(args.emitted,
         {.policy = policy,
          .graph = explained.forward,
          .model = args.options.model,
          .evidence = "",
          .trains = explained.trains},
         /*quiet=*/false);
    return kExitFine;
  }
  if (args.json) {
    print_text(to_json(program, step) + "\n");
    return kExitFine;
  }
  const std::string target = lane.target.empty() ? "" : " on " + lane.target;
  const std::string help = policy.help.empty() ? "" : ": " + policy.help;
  print_text(explained.about);
  print_line(fmt::format("{} under {}{}{}", step.name, policy.label(), target, help));
  print_text("\n" + to_text(program, step, sites));
  return kExitFine;
}

}  // namespace

std::function<int()> declare_explain(CLI::App& app) {
  auto args = std::make_shared<ExplainArgs>();
  args->graph = kMainGraph;
  args->options.model.clear();
  app.add_option("MODEL", args->options.model, "a built-in model, or a capture")
      ->type_name("")
      ->required();
  app.add_option("--policy", args->policy,
                 "a preset (see `lockstep list presets`) or my.toml; @TARGET is optional")
      ->type_name("P")
      ->required();
  const ArgumentChecks checks("explain");
  std::vector<OptionOnLine> options;
  const auto declare = [&](const auto& member, const char* help) {
    const RunOptions& defaults = args->options;
    options.push_back(declare_option(app, option_at(defaults, &member), defaults));
    if (help != nullptr) options.back().option->description(help);
  };
  declare(args->options.data, "data whose image shape is used [the model's default]");
  declare(args->options.sizes, "the model's sizes, e.g. layers=2,width=64");
  declare(args->options.batch, nullptr);
  const std::vector<OptionOnLine> of_models = options;
  CLI::Option* graph = app.add_option("--graph", args->graph,
                                      "which graph, if a capture has batches of several shapes "
                                      "[the one with most nodes]")
                           ->type_name("N");
  checks.whole(graph, 0, kLargestCount);
  declare(args->options.backward_per_loss, nullptr);
  app.add_flag("--json", args->json, "print JSON instead of a table");
  declare_emit(app, args->emitted)->excludes("--json");
  app.add_flag("--overwrite", args->overwrite, "replace FILE of --emit and --svg if it exists");
  app.add_option("--svg", args->svg,
                 "also draw the three products of a linear layer into this file")
      ->type_name("FILE");
  return [args, checks, options, of_models, graph] {
    ProblemList& problems = checks.problems();
    if (is_capture(args->options.model)) {
      refuse_captured(args->options.model, of_models, problems);
    } else if (graph->count() > 0) {
      problems.add("--graph: only a capture has several graphs", "leave it out");
    }
    read_options(options, args->options, problems);
    return explain(*args, problems);
  };
}

}  // namespace lockstep

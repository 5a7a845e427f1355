// lockstep recommend: the range table of a run, and the policy that follows from it.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "analysis/recommend.h"
#include "reports/range_text.h"
#include "src/cli/command.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/train/models/model.h"

namespace lockstep {
namespace {

struct RecommendArgs {
  std::string run, formats = "fp16", output;
  bool overwrite = false;
};

void refuse_model(const std::string& name) {
  if (std::filesystem::exists(name)) return;
  for (const Model& model : models()) {
    if (model.name != name) continue;
    throw InputError(fmt::format("recommend {}: needs a run file in this version", name),
                     fmt::format("first `lockstep replay {} -o run.h5`, then `lockstep recommend "
                                 "run.h5`",
                                 name));
  }
}

int run_recommend(const RecommendArgs& args) {
  refuse_model(args.run);
  if (!args.output.empty() && std::filesystem::exists(args.output) && !args.overwrite) {
    throw InputError(fmt::format("{}: exists, and nothing is overwritten unasked", args.output),
                     "-o OTHER, or --overwrite");
  }
  const RunFile run(args.run);
  const Recommendation found = recommend(run, args.formats);
  fmt::print("{}", range_text(found));
  if (args.output.empty()) {
    fmt::print("\nThe policy (write it with -o policy.toml):\n\n{}", found.policy);
    return kExitFine;
  }
  write_text_file_atomically(args.output, found.policy);
  fmt::print(
      "\nWrote {}. To see what it does:\n  lockstep replay {} --lanes fp32,{} -o verify.h5\n",
      args.output, run.options().model, args.output);
  return kExitFine;
}

}  // namespace

std::function<int()> declare_recommend(CLI::App& app) {
  auto args = std::make_shared<RecommendArgs>();
  app.add_option("RUN", args->run, "a run file; its fp32 lane's histograms are the evidence")
      ->type_name("")
      ->required();
  app.add_option("--formats", args->formats, "fp16 or bf16")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("-o,--output", args->output, "write the policy here")->type_name("FILE");
  app.add_flag("--overwrite", args->overwrite, "replace the policy file if it exists");
  app.footer(
      "Ranges only, nothing is searched: which loss scales keep every gradient inside the format,\n"
      "and which layers no scale suits.");
  return [args] { return run_recommend(*args); };
}

}  // namespace lockstep

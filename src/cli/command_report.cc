// lockstep report: a run file as text.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "reports/section.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/run/run_file.h"

namespace lockstep {
namespace {

struct ReportArgs {
  std::string run, output, format = "text";
  bool overwrite = false;
};

int report(const ReportArgs& args) {
  ProblemList problems("report");
  if (args.format != "text") {
    problems.add(fmt::format("--format {}: this version writes text only", args.format),
                 "use --format text");
  }
  for (const char* other : {".html", ".htm", ".md", ".json", ".xml"}) {
    if (!args.output.ends_with(other)) continue;
    problems.add(fmt::format("-o {}: this version writes text only", args.output),
                 "a name that ends in .txt");
  }
  if (!args.output.empty()) {
    check_output(args.output, args.overwrite ? Replace::kText : Replace::kNothing,
                 "-o OTHER, or --overwrite", problems);
  }
  std::optional<RunFile> run;
  collect_problems(problems, [&] { run.emplace(args.run); });
  problems.throw_if_any();
  const std::string text = report_text(read_report(*run));
  if (args.output.empty()) {
    fmt::print("{}", text);
    return kExitFine;
  }
  write_text_file_atomically(args.output, text);
  fmt::print("Wrote {}\n", args.output);
  return kExitFine;
}

}  // namespace

std::function<int()> declare_report(CLI::App& app) {
  auto args = std::make_shared<ReportArgs>();
  app.add_option("RUN", args->run, "a run file")->type_name("")->required();
  app.add_option("-o,--output", args->output, "write here instead of to the terminal")
      ->type_name("FILE");
  app.add_flag("--overwrite", args->overwrite, "replace FILE if it exists (never an HDF5 file)");
  app.add_option("--format", args->format, "text (html, markdown, json: not in this version)")
      ->type_name("NAME")
      ->capture_default_str();
  return [args] { return report(*args); };
}

}  // namespace lockstep

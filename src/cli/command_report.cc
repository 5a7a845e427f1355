// lockstep report: a run file as text or JSON.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "reports/report_json.h"
#include "reports/section.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/cli/terminal.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/run/run_file.h"

namespace lockstep {
namespace {

struct ReportArgs {
  std::string run, output, format = "text";
  std::optional<uint64_t> seed;
  bool overwrite = false;
};

int report(const ReportArgs& args, ProblemList& problems) {
  const bool is_json = args.format == "json";
  if (!is_json && args.format != "text") {
    problems.add(fmt::format("--format {}: this version writes text and JSON only", args.format),
                 "use --format text, or --format json");
  }
  for (const char* other : {".html", ".htm", ".md", ".json", ".xml"}) {
    if (!args.output.ends_with(other) || (is_json && args.output.ends_with(".json"))) continue;
    problems.add(fmt::format("-o {}: this would be {}", args.output, args.format),
                 is_json ? "a name that ends in .json"
                         : "a name that ends in .txt, or --format json for JSON");
  }
  if (!args.output.empty()) {
    check_output(args.output, args.overwrite ? Replace::kText : Replace::kNothing,
                 "-o OTHER, or --overwrite", problems);
  }
  std::optional<RunFile> run;
  collect_problems(problems, [&] { run.emplace(args.run, false, args.seed); });
  problems.throw_if_any();
  const Report report = read_report(*run, args.seed ? ReportSeeds::kThisOne : ReportSeeds::kAll);
  const TextStyle style = args.output.empty() ? output_style() : TextStyle{};
  const std::string text =
      is_json ? report_json(report) : report_text(report, /*summary_only=*/false, style);
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
  const ArgumentChecks checks("report");
  app.add_option("RUN", args->run, "a run file")->type_name("")->required();
  app.add_option("-o,--output", args->output, "write here instead of to the terminal")
      ->type_name("FILE");
  app.add_flag("--overwrite", args->overwrite, "replace FILE if it exists (never an HDF5 file)");
  checks.whole(
      app.add_option("--seed", args->seed, "this seed alone, of a run of several [all of them]")
          ->type_name("S"),
      0, UINT64_MAX);
  app.add_option("--format", args->format, "text or json (html, markdown: not in this version)")
      ->type_name("NAME")
      ->capture_default_str();
  return [args, checks] { return report(*args, checks.problems()); };
}

}  // namespace lockstep

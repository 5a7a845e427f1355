// lockstep report: a run file as text.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "reports/section.h"
#include "src/cli/command.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/run_file.h"

namespace lockstep {
namespace {

struct ReportArgs {
  std::string run, output, format = "text";
};

int report(const ReportArgs& args) {
  if (args.format != "text") {
    throw InputError(fmt::format("--format {}: this version writes text only", args.format),
                     "use --format text");
  }
  const RunFile run(args.run);
  const std::string text = report_text(read_report(run));
  if (args.output.empty()) {
    fmt::print("{}", text);
    return kExitFine;
  }
  if (std::filesystem::exists(args.output) && std::filesystem::equivalent(args.output, args.run)) {
    throw InputError(fmt::format("-o {}: is the run file itself", args.output),
                     "name another file");
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
  app.add_option("--format", args->format, "text (html, markdown, json: not in this version)")
      ->type_name("NAME")
      ->capture_default_str();
  return [args] { return report(*args); };
}

}  // namespace lockstep

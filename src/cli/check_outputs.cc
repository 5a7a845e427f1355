// See check_outputs.h.
#include "src/cli/check_outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "reports/check/check_github.h"
#include "reports/check/check_json.h"
#include "reports/check/check_junit.h"
#include "reports/check/check_sarif.h"
#include "reports/check/check_text.h"
#include "reports/writers/html_page.h"
#include "reports/writers/markdown_page.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/command_files.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/text_file.h"

namespace lockstep {
namespace {

struct OutputRow {
  const char *option, *help;
  std::string CheckOutputs::*path;
  std::string (*write)(const CheckResult& result);
};
constexpr OutputRow kOutputs[] = {
    {"--json", "write the result as JSON (docs/check-json.md)", &CheckOutputs::json, check_json},
    {"--junit", "write the result as JUnit XML, which CI systems show as tests",
     &CheckOutputs::junit, check_junit},
    {"--markdown", "write the result as Markdown that fits a pull request's comment",
     &CheckOutputs::markdown,
     [](const CheckResult& result) { return markdown_page(check_page(result)); }},
    {"--sarif", "write the alarms as SARIF 2.1.0, for code scanning", &CheckOutputs::sarif,
     [](const CheckResult& result) { return check_sarif(result, LOCKSTEP_VERSION); }},
    {"--report", "write the result as an HTML page", &CheckOutputs::report,
     [](const CheckResult& result) { return html_page(check_page(result)); }},
};

// GitHub shows what is appended to the file of this name.
void append_summary(const CheckResult& result) {
  const char* path = std::getenv("GITHUB_STEP_SUMMARY");
  if (path == nullptr || *path == '\0') return;
  std::error_code error;
  const std::uintmax_t used = std::filesystem::file_size(path, error);
  std::ofstream file(path, std::ios::app | std::ios::binary);
  file << summary_that_fits(markdown_page(check_page(result)), error ? 0 : used);
  file.close();
  if (!file) throw InputError(fmt::format("GITHUB_STEP_SUMMARY={}: cannot be written", path));
}

}  // namespace

void declare_check_outputs(CLI::App& app, CheckOutputs& outputs) {
  for (const OutputRow& row : kOutputs) {
    app.add_option(row.option, outputs.*row.path, row.help)->type_name("FILE")->group("Outputs");
  }
  app.add_flag("--github", outputs.github,
               "print annotations for GitHub Actions, and append to its job summary")
      ->group("Outputs");
}

void check_outputs(const CheckOutputs& outputs, const std::vector<CommandInput>& inputs,
                   bool is_exact, ProblemList& problems) {
  CommandFiles files;
  for (const CommandInput& input : inputs) files.input(input.what, input.path);
  std::vector<const OutputRow*> on_standard_output;
  if (is_exact && outputs.github) problems.add("--github and --exact: --exact prints text only");
  for (const OutputRow& row : kOutputs) {
    const std::string& path = outputs.*row.path;
    if (path.empty()) continue;
    if (is_exact) problems.add(fmt::format("{} and --exact: --exact prints text only", row.option));
    const bool is_file = path != kStandardOutput;
    if (!is_file && outputs.github) {
      problems.add(fmt::format("{} - and --github: both write to standard output", row.option),
                   fmt::format("{} FILE", row.option));
    }
    if (!is_file) {
      for (const OutputRow* other : on_standard_output) {
        problems.add(fmt::format("{} - and {} -: the same file", other->option, row.option),
                     "name another file");
      }
      on_standard_output.push_back(&row);
      continue;
    }
    files.output(row.option, path);
    check_output(path, Replace::kText, "", problems, row.option);
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code error;
    if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
      problems.add(fmt::format("{} {}: there is no folder {}", row.option, path, folder.string()));
    }
  }
  files.check(problems);
}

void write_check_outputs(const CheckOutputs& outputs, const CheckResult& result) {
  const bool is_error = result.verdict == CheckVerdict::kError;
  const bool has_printed = std::ranges::any_of(
      kOutputs, [&](const OutputRow& row) { return outputs.*row.path == kStandardOutput; });
  // First, so that a file that cannot be written does not hide it.
  if (!has_printed && !is_error) print_text(check_text(result, output_style()));
  // All files that can be written agree, also where another one cannot: with an error, the caller
  // writes that instead of the result, before anything is printed for programs.
  std::vector<std::string> problems;
  const auto attempt = [&](auto&& write) {
    try {
      write();
    } catch (const InputError& error) {
      for (const std::string& line : error.lines()) problems.push_back(line);
    }
  };
  for (const OutputRow& row : kOutputs) {
    const std::string& path = outputs.*row.path;
    if (path.empty() || path == kStandardOutput) continue;
    attempt([&] { write_text_file_atomically(path, row.write(result)); });
  }
  if (outputs.github) attempt([&] { append_summary(result); });
  if (!problems.empty() && !is_error) throw InputError("outputs of check", problems);
  if (outputs.github) print_text(github_annotations(result));
  for (const OutputRow& row : kOutputs) {
    if (outputs.*row.path != kStandardOutput) continue;
    fmt::print("{}", row.write(result));  // every writer has made names printable
  }
  if (!problems.empty()) throw InputError("outputs of check", problems);
}

}  // namespace lockstep

// lockstep report: a run file, or two next to each other, as text, JSON, HTML, Markdown or CSV.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "reports/monitor/monitor_page.h"
#include "reports/pair/pair_json.h"
#include "reports/pair/pair_page.h"
#include "reports/run/report_format.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/arguments/search_arguments.h"
#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/recommend_fix.h"
#include "src/cli/report_tables.h"
#include "src/cli/terminal/live_server.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/verify_run.h"
#include "src/core/counted.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/run/run_reader.h"

namespace lockstep {
namespace {

struct ReportArgs {
  std::string run, second_run, output;
  std::optional<std::string> format, table;
  std::optional<uint64_t> seed;
  bool overwrite = false, live = false, tries = false, damaged = false;
  int threads = 0;
  std::optional<uint16_t> port;
};

// The live view takes none of the other options.
int live(const ReportArgs& args, ProblemList& problems) {
  const std::pair<bool, const char*> others[] = {{!args.output.empty(), "-o"},
                                                 {args.format.has_value(), "--format"},
                                                 {args.table.has_value(), "--table"},
                                                 {args.seed.has_value(), "--seed"},
                                                 {args.overwrite, "--overwrite"},
                                                 {!args.second_run.empty(), "RUN2"},
                                                 {args.tries, "--try"},
                                                 {args.damaged, "--damaged"}};
  for (const auto& [is_given, name] : others) {
    if (is_given) problems.add(fmt::format("--live and {}: the live view writes nothing", name));
  }
  std::error_code error;
  const bool has_file = std::filesystem::exists(args.run, error);
  const bool has_snapshot = std::filesystem::exists(args.run + ".progress.json", error);
  if (has_file && !has_snapshot) {
    collect_problems(
        problems, [&] { const RunFile run = RunFile::of_any_run(args.run, /*allow_empty=*/true); });
  }
  if (!has_file && !has_snapshot) {
    problems.add(fmt::format("run file '{}': no such file", args.run),
                 "begin the run first: lockstep replay MODEL -o " + shell_path(args.run));
  }
  problems.throw_if_any();
  return serve_live(args.run, args.port.value_or(0));
}

// By --format or --table, else by the ending of the file's name, else the first one.
const ReportFormat& format_of(const ReportArgs& args, ProblemList& problems) {
  const ReportFormat* of_file = report_format_of_file(args.output);
  const ReportFormat* asked = args.format ? find_report_format(*args.format) : nullptr;
  if (args.table && !args.format) asked = &tables_format();
  if (args.format && asked == nullptr) {
    problems.add(fmt::format("--format {}: unknown", *args.format), report_format_names());
  }
  if (asked != nullptr && of_file != nullptr && of_file != asked) {
    problems.add(fmt::format("-o {}: this would be {}", args.output, asked->name),
                 fmt::format("a name that ends in {}, or --format {}", asked->endings.front(),
                             of_file->name));
  }
  const ReportFormat& found = asked != nullptr     ? *asked
                              : of_file != nullptr ? *of_file
                                                   : report_formats().front();
  if (args.output.ends_with(".xml")) {
    problems.add(fmt::format("-o {}: this would be {}", args.output, found.name),
                 fmt::format("a name that ends in {}", found.endings.front()));
  }
  if (args.table && args.format && &found != &tables_format()) {
    problems.add(fmt::format("--table {}: {} has no tables of its own", *args.table, found.name),
                 fmt::format("--format {}", tables_format().name));
  }
  return found;
}

std::optional<RunFile> open_run(const std::string& path, const ReportArgs& args,
                                ProblemList& problems) {
  std::optional<RunFile> run;
  collect_problems(problems, [&] {
    run.emplace(args.damaged ? RunFile::read_whole_steps(path, args.seed)
                             : RunFile::of_any_run(path, false, args.seed));
  });
  if (!run) return std::nullopt;
  note_missing_checksums(*run);
  const bool is_cut = !run->damage().empty();
  if (is_cut) {
    print_note(fmt::format("note: {} is damaged: {}. {} before it are read", path, run->damage(),
                           counted(run->steps(), "step")));
  } else if (args.damaged) {
    print_note(fmt::format("note: {}: no damage was found", path));
  }
  return run;
}

Report read(const RunFile& run, const ReportArgs& args, ReportPictures pictures) {
  // The whole steps are those of one seed.
  const bool is_one = args.seed || !run.damage().empty();
  return read_report(run, is_one ? ReportSeeds::kThisOne : ReportSeeds::kAll, pictures);
}

// What the user requested: a report of one run, or of two next to each other.
struct Reported {
  std::optional<Report> report;
  std::optional<ReportPair> pair;
  std::optional<MonitorReport> monitored;

  ReportPage page() const {
    constexpr bool kDraws = true;  // the data of pictures, too
    if (monitored) return monitor_page(*monitored);
    return pair ? pair_page(*pair) : report_page(*report, kDraws);
  }
  std::string text(const ReportFormat& format, const TextStyle& style) const {
    if (report) return format.write(*report, style);
    if (format.write_page != nullptr) return format.write_page(page(), style);
    return monitored ? monitor_json(*monitored) : pair_json(*pair);
  }
};

Reported read_all(const ReportArgs& args, ReportPictures pictures, ProblemList& problems) {
  const std::optional<RunFile> run = open_run(args.run, args, problems);
  const bool are_two = !args.second_run.empty();
  const auto second = are_two ? open_run(args.second_run, args, problems) : std::nullopt;
  for (const std::optional<RunFile>* one : {&run, &second}) {
    if (!*one || !(*one)->is_live()) continue;
    if (are_two) {
      problems.add(
          fmt::format("'{}': a monitor recorded it: two reports are not compared", (*one)->path()));
    }
    if (args.tries) problems.add("--try: a monitored run has no lanes, and so no remedies");
  }
  problems.throw_if_any();
  Reported out;
  if (run->is_live()) {
    out.monitored = read_monitor_report(*run);
    return out;
  }
  out.report = read(*run, args, pictures);
  if (!second) return out;
  out.pair = compare_reports(*std::move(out.report), read(*second, args, pictures));
  out.report.reset();
  return out;
}

// A report reads the runs, and of the live view their snapshots.
CommandFiles files_of(const ReportArgs& args, const std::vector<std::string>& outputs) {
  CommandFiles files;
  files.input("RUN", args.run);
  files.input("RUN2", args.second_run);
  for (const std::string& output : outputs) files.output("-o", output);
  return files;
}

int report(const ReportArgs& args, ProblemList& problems) {
  if (args.live) return live(args, problems);
  if (args.port) problems.add(fmt::format("--port {}: only of --live", *args.port));
  if (args.tries && !args.second_run.empty()) {
    problems.add("--try and RUN2: remedies are run of one run", "leave one of them out");
  }
  if (args.threads != 0) set_thread_count(args.threads);
  const ReportFormat& format = format_of(args, problems);
  const bool is_folder = format.write == nullptr && !args.table;
  const bool is_printed = args.output.empty() || args.output == kStandardOutput;
  if (is_folder) {
    check_table_folder(args.output, args.overwrite, problems);
  } else if (!is_printed) {
    check_output(args.output, args.overwrite ? Replace::kText : Replace::kNothing,
                 "-o OTHER, or --overwrite", problems);
    files_of(args, {args.output}).check(problems);
  }
  Reported reported = read_all(args, args.table ? ReportPictures::kAll : format.pictures, problems);
  if (args.tries) {
    try {
      try_remedies(*reported.report);
    } catch (const SearchStopped&) {
      return search_stopped(search_folder(args.run));
    }
  }
  if (is_folder) {
    const TableFiles tables = table_files(reported.page(), args.output);
    files_of(args, tables.paths).check(problems);
    problems.throw_if_any();
    return write_tables(tables, args.output);
  }
  const TextStyle style = is_printed ? output_style() : TextStyle{};
  const std::string text =
      args.table ? table_text(reported.page(), *args.table) : reported.text(format, style);
  if (is_printed) {
    fmt::print("{}", text);  // every writer has made names printable
    return kExitFine;
  }
  write_text_file_atomically(args.output, text);
  print_line("Wrote " + args.output);
  return kExitFine;
}

}  // namespace

std::function<int()> declare_report(CLI::App& app) {
  auto args = std::make_shared<ReportArgs>();
  const ArgumentChecks checks("report");
  app.add_option("RUN", args->run, "a run file")->type_name("")->required();
  app.add_option("RUN2", args->second_run,
                 "a second run, after a fix: what changed from RUN to this one")
      ->type_name("");
  app.add_option("-o,--output", args->output,
                 "a file, or - for standard output [-]; all tables as csv: a folder")
      ->type_name("FILE");
  app.add_flag("--overwrite", args->overwrite,
               "replace FILE if it exists (never an HDF5 file); a folder: files in it");
  checks.whole(
      app.add_option("--seed", args->seed, "this seed alone, of a run of several [all of them]")
          ->type_name("S"),
      0, UINT64_MAX);
  app.add_option("--format", args->format,
                 report_format_names() + " [by the ending of FILE, else text]")
      ->type_name("NAME");
  app.add_option("--table", args->table, "one table alone, as csv: loss-curves, lanes, ...")
      ->type_name("NAME");
  app.add_flag("--try", args->tries,
               fmt::format("run the remedies of what was found, as `recommend --fix` does, where "
                           "the replay took {:g} s or less: {} lanes at most, a minute each",
                           kQuickSeconds, kTriedLanes));
  declare_threads(app, checks, args->threads);
  app.add_flag("--damaged", args->damaged,
               "of a damaged file: the steps before the first row that is not as it was written");
  app.add_flag("--live", args->live,
               "follow a run that is being written: a page on 127.0.0.1 for a browser");
  checks.whole(
      app.add_option("--port", args->port, "of the live view [a free one]")->type_name("N"), 1,
      UINT16_MAX);
  return [args, checks] { return report(*args, checks.problems()); };
}

}  // namespace lockstep

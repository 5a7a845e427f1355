// Folders and names of tables.
#include "src/cli/report_tables.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "reports/writers/csv_writer.h"
#include "reports/writers/number_text.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/text.h"
#include "src/core/text_file.h"

namespace lockstep {

const ReportFormat& tables_format() {
  return *find_report_format("csv");
}

void check_table_folder(const std::string& folder, bool overwrite, ProblemList& problems) {
  if (folder.empty() || folder == kStandardOutput) {
    problems.add("csv: a report has several tables, one file each",
                 "-o FOLDER/, or --table NAME for one of them");
    return;
  }
  if (report_format_of_file(folder) == &tables_format()) {
    problems.add(fmt::format("-o {}: one file, and a report has several tables", folder),
                 "-o FOLDER/, or --table NAME for one of them");
    return;
  }
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found) return;
  if (!std::filesystem::is_directory(status)) {
    problems.add(fmt::format("-o {}: is a file, a folder required", folder), "-o FOLDER/");
    return;
  }
  const bool is_empty = std::filesystem::is_empty(folder, error);
  if (error) {
    problems.add(fmt::format("-o {}: cannot be read: {}", folder, error.message()));
  } else if (!is_empty && !overwrite) {
    problems.add(fmt::format("-o {}: holds files, and none is overwritten by default", folder),
                 "-o OTHER/, or --overwrite");
  }
}

TableFiles table_files(const ReportPage& page, const std::string& folder) {
  TableFiles files{.tables = csv_tables(page.sections), .paths = {}};
  for (const CsvTable& table : files.tables) {
    files.paths.push_back((std::filesystem::path(folder) / (table.name + ".csv")).string());
  }
  return files;
}

int write_tables(const TableFiles& files, const std::string& folder) {
  make_output_folder(folder);
  for (size_t i = 0; i < files.tables.size(); ++i) {
    write_text_file_atomically(files.paths[i], files.tables[i].text);
  }
  print_line(fmt::format("Wrote {} into {}", counted(files.tables.size(), "table"), folder));
  return kExitFine;
}

std::string table_text(const ReportPage& page, const std::string& name) {
  std::vector<std::string> names;
  for (CsvTable& table : csv_tables(page.sections)) {
    if (table.name == name) return std::move(table.text);
    names.push_back(std::move(table.name));
  }
  throw InputError(fmt::format("--table {}: unknown", name), "there are: " + join(names, ", "));
}

}  // namespace lockstep

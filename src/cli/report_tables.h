// The tables of a report as CSV: all of them into a folder, or one.
#pragma once

#include <string>
#include <vector>

#include "reports/run/report_format.h"
#include "reports/writers/csv_writer.h"
#include "reports/writers/page.h"
#include "src/core/error.h"

namespace lockstep {

const ReportFormat& tables_format();  // csv
// Adds a problem unless all tables can be written into `folder`: it is new or empty, or may be
// written into.
void check_table_folder(const std::string& folder, bool overwrite, ProblemList& problems);
// The tables of a page, and the file of each in a folder.
struct TableFiles {
  std::vector<CsvTable> tables;
  std::vector<std::string> paths;
};
TableFiles table_files(const ReportPage& page, const std::string& folder);
// Makes the folder and writes them. Returns: the exit code.
int write_tables(const TableFiles& files, const std::string& folder);
// Throws: InputError with the names of all tables, if none has that name.
std::string table_text(const ReportPage& page, const std::string& name);

}  // namespace lockstep

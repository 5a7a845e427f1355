// The tables of a report as CSV: all of them into a folder, or one.
#pragma once

#include <string>

#include "reports/report_format.h"
#include "reports/section.h"
#include "src/core/error.h"

namespace lockstep {

const ReportFormat& tables_format();  // csv
// Adds a problem unless all tables can be written into `folder`: it is new or empty, or may be
// written into.
void check_table_folder(const std::string& folder, bool overwrite, ProblemList& problems);
// Writes every table as FOLDER/NAME.csv; other files stay. Returns: the exit code.
int write_tables(const ReportPage& page, const std::string& folder);
// Throws: InputError with the names of all tables, if none has that name.
std::string table_text(const ReportPage& page, const std::string& name);

}  // namespace lockstep

// How each run was made.
#include "reports/pair/pair_page.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

Blocks write_runs(const ReportPair& pair) {
  Blocks out;
  for (const Report* report : {&pair.before, &pair.after}) {
    out.push_back(paragraph(report->path + ":"));
    out.push_back(verbatim(report->command_line));
  }
  out.push_back(paragraph("For all of one run: `lockstep report " + shell_quoted(pair.after.path) +
                          "`. To gate a pull request: `lockstep check`."));
  return out;
}

}  // namespace

PairSection runs_pair_section() {
  return {.name = "runs", .title = "The two runs", .write = write_runs};
}

}  // namespace lockstep

// lockstep monitor: writes the run file of a monitor, whose steps come on standard input, and says
// at once what it warns of. lockstep_capture.Monitor starts it; the training loop never waits for a
// disk, and a loop that is killed leaves a whole file.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "analysis/monitor/alarms.h"
#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/core/error.h"
#include "src/monitor/monitor_stream.h"
#include "src/record/run/run_writer.h"

namespace lockstep {
namespace {

struct MonitorArgs {
  std::string run;
  bool overwrite = false;
};

std::string json_of(const LiveAlarm& alarm, const MonitoredRun& run) {
  nlohmann::ordered_json json = {
      {"rule", alarm.rule}, {"step", alarm.step}, {"sentence", alarm.sentence}};
  if (alarm.site >= 0) {
    const Site& site = run.sites.sites[static_cast<size_t>(alarm.site)];
    json["layer"] = site.layer;
    json["role"] = to_string(site.role);
    json["op"] = site.op;
    json["more"] = alarm.more;
    if (alarm.rank >= 0) json["rank"] = alarm.rank;
    if (alarm.micro_batch >= 0) json["micro_batch"] = alarm.micro_batch;
  }
  constexpr int kOneLine = -1;
  return json.dump(kOneLine, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int monitor(const MonitorArgs& args) {
  const MonitoredRun run = read_monitored_run(std::cin);
  RunFileWriter writer(args.run, command_line(), args.overwrite);
  std::vector<SnapshotFinding> told;
  writer.show_findings([&told] {
    std::vector<SnapshotFinding> newest(told.rbegin(), told.rend());
    return std::vector<std::vector<SnapshotFinding>>{newest};
  });
  writer.on_start(run.description());
  Alarms alarms({&run.sites, &run.lane.site_formats});
  StepRecord step;
  while (read_monitored_step(std::cin, run, step)) {
    writer.on_step(step);
    for (const LiveAlarm& alarm : alarms.check(step)) {
      const std::string place =
          alarm.site < 0 ? "" : run.sites.sites[static_cast<size_t>(alarm.site)].label() + ": ";
      told.push_back(
          {.kind = alarm.rule, .sentence = place + alarm.sentence, .first_step = alarm.step});
      fmt::print("{}\n", json_of(alarm, run));
      std::fflush(stdout);
    }
  }
  writer.on_finish();
  return kExitFine;
}

}  // namespace

std::function<int()> declare_monitor(CLI::App& app) {
  auto args = std::make_shared<MonitorArgs>();
  app.add_option("RUN", args->run, "the run file to write")->type_name("")->required();
  app.add_flag("--overwrite", args->overwrite, "replace RUN if it exists");
  return [args] { return monitor(*args); };
}

}  // namespace lockstep

// The origin of the run file, and how to produce it again.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reports/run/section.h"
#include "reports/writers/text_writer.h"
#include "src/core/counted.h"
#include "src/train/replay_command.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_option_text.h"

namespace lockstep {
namespace {

// What an engine's device did, in short lines. Named are the sums that the library may have split,
// the most parts first.
std::vector<std::string> device_lines(const DeviceWork& work, const SiteTable& sites) {
  constexpr double kMega = 1e6;
  constexpr size_t kMostNamed = 5;
  std::vector<std::string> lines = {
      fmt::format("on the device: {} of {}",
                  counted(static_cast<uint64_t>(work.products), "product"),
                  counted(work.kinds.size(), "kind")),
      fmt::format("copied there: {:.1f} MB, back: {:.1f} MB",
                  static_cast<double>(work.bytes_up) / kMega,
                  static_cast<double>(work.bytes_down) / kMega)};
  std::map<int32_t, int64_t> parts;  // by site
  for (const DeviceProduct& product : work.kinds) {
    if (product.most_parts == 1) continue;
    int64_t& most = parts[static_cast<int32_t>(product.site)];
    most = std::max(most, product.most_parts);
  }
  std::vector<std::pair<int32_t, int64_t>> order(parts.begin(), parts.end());
  std::ranges::stable_sort(order, std::greater<>(), [](const auto& row) { return row.second; });
  for (size_t i = 0; i < std::min(order.size(), kMostNamed); ++i) {
    const auto& [site, most] = order[i];
    lines.push_back(
        fmt::format("at most {} parts: {}", most,
                    site < 0 ? "other sums" : sites.sites[static_cast<size_t>(site)].label()));
  }
  if (order.size() > kMostNamed) {
    lines.push_back(fmt::format("sums in parts at {} more places", order.size() - kMostNamed));
  }
  return lines;
}

// The options that make it this run and no other of the same training, where they are not at their
// defaults; the seed and what has words of its own always.
void add_options(const RunOptions& options, OptionEffect effect, TableBlock& table) {
  const RunOptions defaults;
  for (const RunOption& row : run_options()) {
    const void* const member = address_of(row, options);
    if (row.effect != effect || row.setting.empty() || member == &options.data) continue;
    std::string text = option_text(row, options);
    if (!row.told.empty()) {
      text = row.told[std::get<ChosenWord>(row.member).index(options)];
    } else if (text == option_text(row, defaults) && member != &options.seed) {
      continue;
    }
    if (!text.empty()) table.rows.push_back({std::string(row.setting), text});
  }
}

Blocks write_provenance(const Report& report) {
  TableBlock table;
  table.columns = {{"what", Align::kLeft}, {"value", Align::kLeft}};
  table.rows.push_back({"run file", report.path});
  table.rows.push_back(
      {"steps recorded", fmt::format("{} of {} asked for", report.steps, report.options.steps)});
  table.rows.push_back({"data", !report.options.capture_hash.empty() ? report.data
                                : report.options.data.empty()        ? "the model's default"
                                                                     : report.options.data});
  for (const OptionEffect effect :
       {OptionEffect::kDraw, OptionEffect::kRepeat, OptionEffect::kReplay}) {
    add_options(report.options, effect, table);
  }
  for (const LaneReport& lane : report.lanes) {
    const std::string target = lane.info.target.empty() ? "" : "@" + lane.info.target;
    table.rows.push_back({"lane " + lane.info.name, lane.info.engine + target});
    std::string fallbacks;
    for (const std::string& name : lane.info.fallbacks) {
      fallbacks += (fallbacks.empty() ? "in software: " : ", ") + name;
    }
    if (!fallbacks.empty()) table.rows.push_back({"", fallbacks});
    if (lane.device.products == 0) continue;
    for (std::string& line : device_lines(lane.device, report.sites)) {
      table.rows.push_back({"", std::move(line)});
    }
  }
  for (const auto& [key, value] : report.environment) table.rows.push_back({key, value});
  // Runs of other commands have no command line of their own.
  const bool is_replay = report.command_line.starts_with("lockstep replay ");
  const std::string command = is_replay || is_of_search(report)
                                  ? report.command_line
                                  : replay_command(report.options, report.path);
  return {table, paragraph("To repeat it:"), verbatim(broken_command(command))};
}

}  // namespace

Section provenance_section() {
  return {.name = "provenance", .title = "Where this comes from", .write = write_provenance};
}

}  // namespace lockstep

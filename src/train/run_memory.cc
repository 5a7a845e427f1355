// See run_memory.h.
#include "src/train/run_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/bytes_text.h"
#include "src/core/counted.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

// Statistics, kernels' scratch and what the allocator keeps, measured as shares of the tensors
// (docs/performance.md).
constexpr double kBesidesTensors = 0.2;

// "--lanes fp32,pure-fp16 needs 1.2 GiB": as many of the first lanes as fit, two or more.
std::string fewer_lanes(const std::vector<LaneMemory>& lanes, int64_t free) {
  std::vector<std::string> names;
  int64_t bytes = 0;
  for (const LaneMemory& lane : lanes) {
    if (bytes + lane.bytes > free) break;
    bytes += lane.bytes;
    names.push_back(lane.lane);
  }
  constexpr size_t kFewest = 2;  // the reference alone shows nothing
  if (names.size() < kFewest || names.size() == lanes.size()) return "";
  return fmt::format("{} {} --twins 0 needs {}; ", option_name(&RunOptions::lanes),
                     join(names, ","), bytes_text(bytes));
}

}  // namespace

int64_t parameter_count(const Graph& graph) {
  int64_t count = 0;
  for (const Parameter& p : graph.parameters) count += element_count(p.type.shape);
  return count;
}

std::string check_run_memory(const std::vector<LaneMemory>& lanes, int64_t parameters,
                             bool is_capture, int64_t free) {
  int64_t needed = 0;
  std::vector<std::string> each;
  for (const LaneMemory& lane : lanes) {
    needed += lane.bytes;
    each.push_back(lane.lane + " " + bytes_text(lane.bytes));
  }
  const auto needed_in_all = static_cast<double>(needed) * (1 + kBesidesTensors);
  if (free <= 0 || needed_in_all <= static_cast<double>(free)) return "";
  const std::string found = fmt::format(
      "memory: {} of {} need at least {} ({:.0f} bytes per parameter: {}), {} is free",
      counted(lanes.size(), "lane"), counted(static_cast<uint64_t>(parameters), "parameter"),
      bytes_text(needed),
      static_cast<double>(needed) / static_cast<double>(std::max<int64_t>(1, parameters)),
      join(each, ", "), bytes_text(free));
  const std::string hint = fewer_lanes(lanes, free) + "fewer --lanes or " +
                           (is_capture ? "a capture of smaller batches" : "a smaller --batch") +
                           " need less";
  if (needed > free) throw InputError(found, hint);
  return found + "; " + hint;
}

}  // namespace lockstep

// A step: a line of JSON, then its numbers as they are in memory, little-endian:
//
//   f64 loss, scale, gradient_norm, seconds, learning rate of every group
//   and in a step that measures, each for all sites in their order:
//   u64 count, source_zero, nan, updates, stagnant, stagnant_bf16
//   f64 scale, abs_max, sum_sq, update_sq, weight_sq
//   i64 largest_rank, largest_micro_batch, nonfinite_rank, nonfinite_micro_batch
//   u64 exponent histogram, 256 bins
#include "src/monitor/monitor_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/json_text.h"
#include "src/policy/find_policy.h"
#include "src/record/run/lane_info.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little);

constexpr int kStreamVersion = 1;
constexpr size_t kMostLine = size_t{1} << 27;
constexpr size_t kMostSites = 1 << 20;
constexpr int64_t kMostGroups = 1 << 16;
constexpr size_t kNumbersOfStep = 4;

// Without its end; nothing at the end of the stream, or where the stream ends in the line.
std::optional<std::string> read_line(std::istream& in) {
  std::string line;
  for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
    if (c == '\n') return line;
    line += static_cast<char>(c);
    if (line.size() > kMostLine) {
      throw InputError(fmt::format("monitor: a line has more than {} bytes", kMostLine));
    }
  }
  return std::nullopt;
}

template <typename T>
T member(const Json& object, const char* name, ProblemList& problems, T absent = {}) {
  const auto found = object.find(name);
  if (found == object.end()) {
    problems.add(fmt::format("'{}' is missing", name));
    return absent;
  }
  try {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      // get() would convert true, 1.5 and 2^32 + 1.
      if (found->is_number_integer() && std::in_range<T>(found->get<int64_t>())) {
        return found->get<T>();
      }
    } else {
      return found->get<T>();
    }
  } catch (const Json::exception&) {  // a problem, below
  }
  problems.add(fmt::format("'{}' is {}, another type is required", name, found->dump()));
  return absent;
}

std::string text_member(const Json& object, const char* name, ProblemList& problems) {
  std::string text = member<std::string>(object, name, problems);
  if (printable(text) != text) {
    problems.add(
        fmt::format("'{}' is '{}', must have no control characters", name, printable(text)));
  }
  return text;
}

Shape shape_of(const Json& row, ProblemList& problems) {
  Shape shape = member<std::vector<int64_t>>(row, "shape", problems);
  double count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) problems.add(fmt::format("'shape' has {}, must be at least 0", extent));
    count *= static_cast<double>(extent);
  }
  constexpr double kMostElements = 0x1p53;
  if (count > kMostElements) problems.add("'shape' has more than 2^53 elements");
  return shape;
}

void add_site(const Json& row, MonitoredRun& run, ProblemList& problems) {
  if (!row.is_object()) return problems.add("a site is not an object");
  Site site = {};
  site.id = static_cast<int32_t>(run.sites.sites.size());
  site.layer = text_member(row, "layer", problems);
  site.op = text_member(row, "op", problems);
  collect_problems(problems, [&] { site.role = find_role(text_member(row, "role", problems)); });
  site.point = Point::kOutput;
  site.shape = shape_of(row, problems);
  site.node = std::string(kLiveNode) + text_member(row, "name", problems);
  site.index = site.id;
  site.value = site.node;
  site.scaled = member<bool>(row, "scaled", problems);
  run.sites.sites.push_back(std::move(site));
  run.lane.site_formats.push_back(text_member(row, "format", problems));
}

LaneDescription live_lane(const Json& header, ProblemList& problems) {
  LaneDescription lane;
  lane.name = kLiveLane;
  lane.engine = "pytorch";
  lane.target = text_member(header, "device", problems);
  lane.policy = find_policy(kReferenceLane);
  lane.policy.name = kLiveLane;
  lane.policy.version.clear();
  lane.policy.help = "the user's own run";
  lane.policy.aliases.clear();
  lane.policy.text =
      fmt::format("# no policy: a monitor measured the run itself\nname = \"{}\"\n", kLiveLane);
  return lane;
}

// Bytes of the rest of a step.
size_t step_bytes(const MonitoredRun& run, bool is_measured) {
  constexpr size_t kNumbersOfSite = 6 + 5 + 4 + kHistogramBins;
  const size_t numbers = kNumbersOfStep + static_cast<size_t>(run.group_count);
  const size_t of_sites = is_measured ? run.sites.sites.size() * kNumbersOfSite : 0;
  return (numbers + of_sites) * sizeof(double);
}

class Taker {
 public:
  explicit Taker(const std::vector<char>& bytes) : at_(bytes.data()) {}
  template <typename T>
  void take(T& into) {
    static_assert(sizeof(T) == sizeof(double));
    std::memcpy(&into, at_, sizeof into);
    at_ += sizeof into;
  }
  template <typename Record>
  void each(std::vector<SiteRecord>& sites, Record member) {
    for (SiteRecord& site : sites) take(member(site));
  }

 private:
  const char* at_;
};

void take_sites(Taker& from, std::vector<SiteRecord>& sites) {
  for (SiteRecord& site : sites) site = {};
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.stats.count; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.stats.source_zero; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.stats.nan; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.update.stats.count; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.update.stats.stagnant; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.live.stagnant_bf16; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.scale; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.stats.abs_max; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.stats.sum_sq; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.update.stats.update_sq; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.update.stats.weight_sq; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.live.largest_rank; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.live.largest_micro_batch; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.live.nonfinite_rank; });
  from.each(
      sites, [](SiteRecord & s) -> auto& { return s.live.nonfinite_micro_batch; });
  for (SiteRecord& site : sites) {
    uint64_t binned = 0;
    for (uint64_t& bin : site.stats.exponent_histogram) {
      from.take(bin);
      binned += bin;
    }
    const TensorStats& stats = site.stats;
    const UpdateStats& update = site.update.stats;
    if (binned != stats.count || stats.source_zero > stats.exponent_histogram.front() ||
        stats.nan > stats.exponent_histogram.back() || update.stagnant > update.count ||
        site.live.stagnant_bf16 > update.count) {
      throw InputError(
          fmt::format("monitor: a site's counts contradict each other: {} of {} values "
                      "in its histogram, {} zeros, {} NaN, {} of {} updates stagnant",
                      binned, stats.count, stats.source_zero, stats.nan,
                      std::max(update.stagnant, site.live.stagnant_bf16), update.count));
    }
    site.measured = site.stats.count > 0;
    site.update.measured = site.update.stats.count > 0;
    // A row of NaN would say that the site was not measured.
    if (site.measured && !(site.stats.abs_max >= 0)) {
      throw InputError(
          fmt::format("monitor: abs_max is {}, must be at least 0", site.stats.abs_max));
    }
  }
}

}  // namespace

RunDescription MonitoredRun::description() const {
  RunDescription out;
  out.step_graph = &graph;
  out.sites = &sites;
  out.options = &options;
  out.lanes = {lane};
  out.data = data;
  return out;
}

MonitoredRun read_monitored_run(std::istream& in) {
  ProblemList problems("monitor");
  Json header;
  try {
    header = parse_json(read_line(in).value_or(""));
  } catch (const InputError& error) {
    throw InputError(fmt::format("monitor: its first line: {}", error.what()),
                     "lockstep_capture.Monitor writes it");
  }
  if (!header.is_object() || header.value("format", Json()) != "lockstep-monitor") {
    throw InputError("monitor: standard input has no description of a run",
                     "lockstep_capture.Monitor writes it");
  }
  if (const int version = member<int>(header, "version", problems); version != kStreamVersion) {
    problems.add(fmt::format("'version' is {}, must be {}", version, kStreamVersion),
                 "install lockstep_capture and the program from one version");
  }
  MonitoredRun run;
  run.lane = live_lane(header, problems);
  run.data = text_member(header, "data", problems);
  run.group_count = member<int64_t>(header, "groups", problems, 1);
  if (run.group_count < 1 || run.group_count > kMostGroups) {
    problems.add(fmt::format("'groups' is {}, must be 1 to {}", run.group_count, kMostGroups));
    run.group_count = 1;
  }
  RunOptions& options = run.options;
  options.model = text_member(header, "model", problems);
  options.data = std::string(kLiveLane);
  options.lanes = {std::string(kLiveLane)};
  options.steps = kUnknownSteps;
  options.measuring.statistics_every = member<int64_t>(header, "every", problems, 1);
  if (options.measuring.statistics_every < 1) {
    problems.add(
        fmt::format("'every' is {}, must be at least 1", options.measuring.statistics_every));
    options.measuring.statistics_every = 1;
  }
  options.measuring.histogram_every = options.measuring.statistics_every;
  options.measuring.sums_every = 0;
  options.groups.resize(static_cast<size_t>(run.group_count) - 1, {"*", options.optimizer});
  const Json rows = member<Json>(header, "sites", problems);
  if (!rows.is_array() || rows.size() > kMostSites) {
    problems.add(fmt::format("'sites' must be a list of at most {}", kMostSites));
  } else {
    for (const Json& row : rows) add_site(row, run, problems);
  }
  problems.throw_if_any();
  run.graph.name = options.model;
  return run;
}

bool read_monitored_step(std::istream& in, const MonitoredRun& run, StepRecord& record) {
  const std::optional<std::string> line = read_line(in);
  if (!line) return false;
  const Json head = parse_json(*line);
  if (head.is_object() && head.contains("end")) return false;
  ProblemList problems("monitor: a step");
  const auto step = member<int64_t>(head, "step", problems);
  record.is_measured = member<bool>(head, "measured", problems);
  ScalerRecord scaler;
  scaler.found_inf = member<bool>(head, "found_inf", problems);
  scaler.skipped = member<bool>(head, "skipped", problems);
  const auto bytes = member<uint64_t>(head, "bytes", problems);
  if (record.lanes.empty()) record.step = -1;
  if (problems.empty() && step != record.step + 1) {
    problems.add(fmt::format("'step' is {}, must be {}", step, record.step + 1));
  }
  if (const size_t wanted = step_bytes(run, record.is_measured); bytes != wanted) {
    problems.add(fmt::format("'bytes' is {}, must be {}", bytes, wanted));
  }
  problems.throw_if_any();
  std::vector<char> numbers(bytes);
  if (!in.read(numbers.data(), static_cast<std::streamsize>(bytes))) return false;
  record.step = step;
  record.lanes.resize(1);
  LaneStep& lane = record.lanes.front();
  Taker from(numbers);
  from.take(lane.loss);
  from.take(scaler.scale);
  from.take(lane.gradient_norm);
  from.take(lane.seconds);
  lane.lr.resize(static_cast<size_t>(run.group_count));
  for (double& lr : lane.lr) from.take(lr);
  lane.scalers = {scaler};
  lane.sites.resize(record.is_measured ? run.sites.sites.size() : 0);
  if (record.is_measured) take_sites(from, lane.sites);
  return true;
}

}  // namespace lockstep

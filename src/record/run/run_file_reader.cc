// Opens a run file in a child process, checks it against the schema and reads its description.
// Extents are never trusted: only the rows up to `steps_complete` count.
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/text.h"
#include "src/graph/json_text.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/options_json.h"
#include "src/record/run/run_checksum.h"
#include "src/record/run/run_file_impl.h"
#include "src/record/run/run_file_names.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/site_table_io.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {
namespace {

// "/seeds/8/lanes/fp32" -> "/lanes/fp32" of seed "8"; of no seed for the file's first run.
std::string_view without_seed(std::string_view path, std::string_view& seed) {
  constexpr std::string_view kPrefix = "/seeds/";
  if (!path.starts_with(kPrefix)) return path;
  path.remove_prefix(kPrefix.size());
  const size_t slash = std::min(path.find('/'), path.size());
  seed = path.substr(0, slash);
  return path.substr(slash);
}

// Large datasets are read later, row by row; of the runs that are not read, attributes alone.
Wanted wanted_of(std::string_view path, const std::string& seed) {
  std::string_view its_seed;
  path = without_seed(path, its_seed);
  if (!its_seed.empty() && its_seed != seed && !path.empty()) return Wanted::kNothing;
  if (!path.starts_with("/lanes")) return Wanted::kContents;
  const bool is_of_lane = std::ranges::count(path, '/') == 3;
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const bool is_text =
      is_of_lane && (name == run_names::kPolicy || name == run_names::kSiteFormats ||
                     name == run_names::kDeviceSums);
  return is_text ? Wanted::kContents : Wanted::kExtent;
}

std::vector<std::string> listed(const std::string& text, char separator) {
  return text.empty() ? std::vector<std::string>{} : split(text, separator);
}

std::map<std::string, std::string> text_map(std::string_view json, const StoredFields& where) {
  std::map<std::string, std::string> found;
  try {
    const nlohmann::json object = parse_json(json);
    for (const auto& [name, value] : object.items()) {
      if (value.is_string()) {
        found[name] = value.get<std::string>();
      } else {
        where.problem("environment: '" + name + "' must be a text");
      }
    }
  } catch (const InputError& error) {
    where.problem(std::string("environment ") + error.what());
  }
  return found;
}

// The texts after every "id": in the graph. A large graph takes half a second to parse, which is
// for those who need it; sites must not name nodes that are nowhere in it.
std::set<std::string_view> ids_in(std::string_view graph_json) {
  constexpr std::string_view kKey = "\"id\"";
  std::set<std::string_view> ids;
  for (size_t at = 0; (at = graph_json.find(kKey, at)) != std::string_view::npos;) {
    at = graph_json.find_first_not_of(": \t\r\n", at + kKey.size());
    if (at == std::string_view::npos || graph_json[at] != '"') continue;
    const size_t end = graph_json.find('"', at + 1);
    if (end == std::string_view::npos) break;
    ids.insert(graph_json.substr(at + 1, end - at - 1));
  }
  return ids;
}

}  // namespace

void RunFile::Impl::damaged(std::string_view why, const std::string& hint) const {
  constexpr size_t kMostBytes = 2000;
  throw DamagedFile(fmt::format("run file '{}' is damaged: {}", path, printable(why, kMostBytes)),
                    hint);
}

void RunFile::Impl::unreadable(std::string_view why) const {
  throw InputError(
      fmt::format("run file '{}': reading it in a separate process failed: {}", path, why),
      "try again");
}

void RunFile::Impl::require_none(const ProblemList& problems) const {
  try {
    problems.throw_if_any();
  } catch (const InputError& error) {
    throw DamagedFile(fmt::format("run file '{}' is damaged", path), error.problems());
  }
}

void RunFile::Impl::require_readable() const {
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) {
    throw InputError(fmt::format("run file '{}': {}", path,
                                 status ? std::strerror(status.value()) : "not a regular file"));
  }
  const FileStart start = read_file_start(path);
  if (start.error != 0) {
    throw InputError(
        fmt::format("run file '{}': cannot be read: {}", path, std::strerror(start.error)),
        "are its permissions right?");
  }
  if (start.bytes == kCaptureBlock.magic) {
    throw InputError(fmt::format("run file '{}': is a capture, must be a run file", path),
                     fmt::format("`lockstep replay {} -o run.h5` makes a run file from it", path));
  }
  if (!start.is_hdf5()) {
    throw InputError(fmt::format("run file '{}': not an HDF5 file", path),
                     "a run file is what `lockstep replay -o` writes");
  }
}

void RunFile::Impl::open(std::optional<uint64_t> seed) {
  require_readable();
  std::error_code status;
  file_bytes = std::filesystem::file_size(path, status);
  DumpRequest request;
  request.most_bytes = kLeastFileContent + file_bytes;
  request.texts = TextRule::kAny;
  const std::string its_seed = seed ? std::to_string(*seed) : "";
  request.wanted = [&](std::string_view object) { return wanted_of(object, its_seed); };
  file = std::make_unique<SandboxedFile>(path, request, limits_of_file(file_bytes));
}

void RunFile::Impl::read(bool allow_empty, std::optional<uint64_t> seed) {
  guard([&] { open(seed); });
  guard([&] { read_description(allow_empty, seed); });
}

void RunFile::Impl::read_root(const StoredFields& root) {
  if (root.text(run_names::kFormat, /*required=*/false) != run_names::kRunFormat) {
    throw InputError(fmt::format("run file '{}': an HDF5 file, but not a run file", path),
                     "a run file is what `lockstep replay -o` writes");
  }
  version = root.integer(run_names::kFormatVersion, 0);
  if (version < 1) root.problem(fmt::format("format_version is {}, must be at least 1", version));
  if (version > kRunFormatVersion) {
    throw InputError(
        fmt::format("run file '{}': format version {}, at most {} is supported (written by "
                    "Lockstep {})",
                    path, version, kRunFormatVersion,
                    printable(root.text(run_names::kLockstepVersion, /*required=*/false))),
        "read it with that version of Lockstep or a newer one");
  }
}

bool RunFile::Impl::read_seeds(const StoredFields& root, std::optional<uint64_t> seed) {
  struct Run {
    uint64_t seed;
    std::string group;
  };
  const auto run_of = [](const StoredFields& run, std::string its_group) -> Run {
    return {options_from_json(run.text(run_names::kOptions)).seed, std::move(its_group)};
  };
  std::vector<Run> runs = {run_of(root, "")};
  const StoredFields others = root.optional(run_names::kSeeds);
  for (const std::string& link : others.children()) {
    const Run& run = runs.emplace_back(
        run_of(others.child(link), "/" + std::string(run_names::kSeeds) + "/" + link));
    if (std::to_string(run.seed) != link) {
      others.problem(fmt::format("group {} holds seed {}", link, run.seed));
    }
  }
  // Links are sorted as text ("10" before "9"); seeds are recorded in ascending order.
  std::sort(runs.begin() + 1, runs.end(),
            [](const auto& a, const auto& b) { return a.seed < b.seed; });
  bool found = false;
  const uint64_t wanted = seed.value_or(runs.front().seed);
  for (const Run& run : runs) {
    if (std::ranges::count(seeds, run.seed) > 0) {
      root.problem(fmt::format("seed {} is in the file twice", run.seed));
    }
    seeds.push_back(run.seed);
    if (run.seed != wanted || found) continue;
    found = true;
    group = run.group;
  }
  return found;
}

void RunFile::Impl::read_description(bool allow_empty, std::optional<uint64_t> seed) {
  ProblemList problems(fmt::format("run file '{}' is damaged", path));
  const StoredFields file_root(&file->tree(), path + ":", problems);
  read_root(file_root);
  require_none(problems);
  bool has_seed = false;
  collect_problems(problems, [&] { has_seed = read_seeds(file_root, seed); });
  require_none(problems);
  if (!has_seed) {
    throw InputError(fmt::format("run file '{}': no seed {}", path, *seed),
                     fmt::format("it holds {}", fmt::join(seeds, ", ")));
  }
  const StoredFields root =
      group.empty() ? file_root
                    : file_root.child(run_names::kSeeds).child(group.substr(group.rfind('/') + 1));
  const bool is_sealed = version >= run_names::kSealedVersion;
  const std::string checksum = root.text(run_names::kDescriptionChecksum, /*required=*/is_sealed);
  if (!checksum.empty() && checksum != run_names::hex(description_checksum(*root.node()))) {
    root.problem("the checksum of its description does not fit");
    require_none(problems);
  }
  collect_problems(problems, [&] { options = options_from_json(root.text(run_names::kOptions)); });
  steps = root.integer(run_names::kStepsComplete, 0);
  if (steps < 0 || steps > options.steps) {
    root.problem(fmt::format("{} steps are complete, must be 0 to {}", steps, options.steps));
  }
  is_closed = steps == options.steps;  // as far as earlier versions tell
  if (is_sealed) {
    const std::string sum = root.text(run_names::kStepsChecksum);
    is_closed = sum == steps_checksum(steps, true);
    if (!is_closed && sum != steps_checksum(steps, false)) {
      root.problem(
          fmt::format("{}: {}; its checksum does not fit", run_names::kStepsComplete, steps));
    }
  }
  is_closed = is_closed && steps <= most_steps;
  steps = std::min(steps, most_steps);
  identity = {root.text(run_names::kRunHash), root.text(run_names::kRunId, /*required=*/false)};
  command_line = printable(root.text(run_names::kCommandLine));
  data = root.text(run_names::kData);
  batches_hash = root.text(run_names::kBatchesHash, /*required=*/false);
  verification_json = root.text(run_names::kVerification, /*required=*/false);
  environment = text_map(root.text(run_names::kEnvironment), root);
  graph_json = root.child(run_names::kGraph).take_text();
  if (root.has(run_names::kProducts)) products_json = root.child(run_names::kProducts).take_text();
  if (root.has(run_names::kLines)) {
    collect_problems(problems, [&] {
      lines = script_lines_from_json(root.child(run_names::kLines).take_text());
    });
  }
  if (root.has(run_names::kWatched)) watched = root.child(run_names::kWatched).take_texts();
  for (const std::string& name : watched) {
    if (is_stored_text(name, TextRule::kPrintable)) continue;
    root.problem(
        fmt::format("{} holds '{}', must have no control characters", run_names::kWatched, name));
  }
  sites = read_sites(root.child(run_names::kSites));
  require_none(problems);
  const std::set<std::string_view> ids = ids_in(graph_json);
  for (const Site& site : sites.sites) {
    if (!is_in_graph(site) || is_on_other_path(site) || ids.contains(site.node)) continue;
    root.problem(fmt::format("site {} is of node '{}', which the graph lacks", site.id, site.node));
    break;
  }
  require_none(problems);
  if (steps == 0 && !allow_empty && !damage.empty()) {
    damaged(damage, "no whole step is before it: record the run anew");
  }
  if (steps == 0 && !allow_empty) {
    throw InputError(fmt::format("run file '{}': no complete step", path),
                     "the run was stopped before its first step ended; replay it again");
  }
  const StoredFields of_lanes = root.child(run_names::kLanes);
  std::map<int64_t, std::string> names;
  for (const std::string& name : of_lanes.children()) {
    const int64_t index = of_lanes.child(name).integer(run_names::kIndex, -1);
    if (names.emplace(index, name).second) continue;
    of_lanes.problem(fmt::format("lanes '{}' and '{}' have index {}", names[index], name, index));
  }
  for (const auto& [index, name] : names) {
    const StoredFields lane = of_lanes.child(name);
    if (index != static_cast<int64_t>(lanes.size())) {
      lane.problem(fmt::format("has index {}, must be {}", index, lanes.size()));
    }
    read_lane(lane, name);
  }
  if (names.empty()) of_lanes.problem("is empty: no lane was recorded");
  require_none(problems);
  // Only for files, which may be gone; presets are in the program, and resuming compares texts.
  for (const LaneInfo& lane : lanes) {
    if (parse_lane_name(lane.name).policy.ends_with(".toml")) {
      options.policy_texts[lane.name] = lane.policy_text;
    }
  }
}

void RunFile::Impl::read_lane(const StoredFields& lane, const std::string& name) {
  LaneInfo& info = lanes.emplace_back();
  info.name = name;
  collect_problems(lane.problems(), [&] { parse_lane_name(name); });
  info.engine = lane.plain_text(run_names::kEngine);
  info.target = lane.plain_text(run_names::kTarget);
  info.fallbacks = listed(lane.plain_text(run_names::kFallbacks), ',');
  const StoredFields scaler = lane.child(run_names::kLossScale);
  if (scaler.has_attribute(run_names::kScalerLosses)) {
    info.scaler_losses = split(scaler.plain_text(run_names::kScalerLosses), ',');
  }
  info.policy_text = lane.child(run_names::kPolicy).take_text();
  info.policy_hash = lane.text(run_names::kPolicyHash);
  info.is_reference = lane.flag(run_names::kIsReference, false);
  info.is_of_larger_model = !options.part.empty();
  if (info.is_reference != (lanes.size() == 1 && !info.is_live())) {
    lane.problem("the first lane, and no other, must be the reference");
  }
  if (lanes.front().is_live() && lanes.size() > 1) {
    lane.problem(fmt::format("lane {} must be alone", kLiveLane));
  }
  info.died_at = lane.integer(run_names::kDiedAt, -1);
  info.died_of = read_death_cause(lane);
  if (info.died_at < -1) lane.problem(fmt::format("died_at is {}, must be >= -1", info.died_at));
  // Recorded in a step that was not completed.
  if (info.died_at >= steps) info.died_at = -1;
  info.warnings = listed(lane.text(run_names::kWarnings, /*required=*/false), '\n');
  for (const auto& [dataset, texts] : {std::pair{run_names::kSiteFormats, &info.site_formats},
                                       std::pair{run_names::kDeviceSums, &info.device_sums}}) {
    if (!lane.has(dataset)) continue;
    *texts = lane.child(dataset).take_texts();
    for (const std::string& text : *texts) {
      if (is_stored_text(text, TextRule::kPrintable)) continue;
      lane.problem(fmt::format("{} holds '{}', must have no control characters", dataset, text));
      break;
    }
    if (texts->size() != sites.sites.size()) {
      lane.problem(fmt::format("{} has {} rows, the run has {} sites", dataset, texts->size(),
                               sites.sites.size()));
    }
  }
  if (lane.has_attribute(run_names::kMemory)) {
    collect_problems(lane.problems(),
                     [&] { info.memory = memory_facts_from_json(lane.text(run_names::kMemory)); });
  }
  const RunExtents extents{version,
                           steps,
                           static_cast<int64_t>(sites.sites.size()),
                           static_cast<int64_t>(options.groups.size()) + 1,
                           static_cast<int64_t>(watched.size()),
                           file_bytes,
                           is_closed};
  check_datasets(lane, fmt::format("{}/{}", run_names::kLanes, hdf5::escape_link(name)), info,
                 extents, datasets);
}

RunFile::RunFile() : impl_(std::make_unique<Impl>()) {}

RunFile::RunFile(const std::string& path, bool allow_empty, std::optional<uint64_t> seed) {
  open(path, allow_empty, seed);
  if (!is_live()) return;
  throw InputError(fmt::format("run file '{}': a monitor recorded the run itself: it has no lanes "
                               "to compare, and no {} lane",
                               path, kReferenceLane),
                   "`lockstep report` shows it; to replay steps, capture them");
}

RunFile RunFile::of_any_run(const std::string& path, bool allow_empty,
                            std::optional<uint64_t> seed) {
  RunFile run;
  run.open(path, allow_empty, seed);
  return run;
}

void RunFile::open(const std::string& path, bool allow_empty, std::optional<uint64_t> seed) {
  try {
    read_while_written<DamagedFile>(path, [&] {
      impl_ = std::make_unique<Impl>();
      impl_->path = path;
      impl_->read(allow_empty, seed);
      impl_->guard([&] { impl_->check_deaths(); });
    });
  } catch (const DamagedFile&) {
    if (!is_being_written(path)) throw;
    throw InputError(fmt::format("run file '{}': is being written and could not be read", path),
                     "try again in a moment");
  }
}

RunFile RunFile::read_whole_steps(const std::string& path, std::optional<uint64_t> seed) {
  RunFile run;
  run.impl_->path = path;
  run.impl_->read(/*allow_empty=*/false, seed);
  const auto [damage, steps] = run.impl_->find_damage();
  if (damage.empty()) return run;
  run.impl_ = std::make_unique<Impl>();
  run.impl_->path = path;
  run.impl_->damage = damage;
  run.impl_->most_steps = steps;
  run.impl_->read(/*allow_empty=*/false, seed);
  return run;
}

uint64_t RunFile::compute_description_checksum(int64_t file, std::optional<uint64_t> seed) {
  const std::string its_seed = seed ? std::to_string(*seed) : "";
  DumpRequest request;
  request.most_bytes = std::numeric_limits<uint64_t>::max();
  request.texts = TextRule::kAny;
  request.wanted = [&](std::string_view object) { return wanted_of(object, its_seed); };
  const StoredNode root = own_tree(file, request);
  return description_checksum(seed ? root.children.at(run_names::kSeeds).children.at(its_seed)
                                   : root);
}

RunFile::~RunFile() = default;
RunFile::RunFile(RunFile&&) noexcept = default;

bool RunFile::has_checksums() const {
  return impl_->version >= run_names::kSealedVersion;
}
const std::string& RunFile::damage() const {
  return impl_->damage;
}
const std::string& RunFile::path() const {
  return impl_->path;
}
int64_t RunFile::steps() const {
  return impl_->steps;
}
// The reference has all sites in every measured step, and no site of other steps has a scale.
bool RunFile::is_measured(int64_t step) const {
  if (options().measuring.statistics_every == 1) return true;
  std::vector<bool>& known = impl_->measured;
  while (static_cast<int64_t>(known.size()) <= step) {
    const auto next = static_cast<int64_t>(known.size());
    const std::vector<double> scales =
        numbers_at(kReferenceIndex, quantity_of(&SiteRecord::scale), next).reals;
    known.push_back(std::ranges::any_of(scales, [](double scale) { return !std::isnan(scale); }));
  }
  return known[static_cast<size_t>(step)];
}
int64_t RunFile::measured_steps() const {
  int64_t measured = 0;
  for (int64_t step = 0; step < steps(); ++step) measured += is_measured(step);
  return measured;
}
int64_t RunFile::last_measured(int64_t step) const {
  while (step >= 0 && !is_measured(step)) --step;
  return step;
}
const RunOptions& RunFile::options() const {
  return impl_->options;
}
const std::vector<uint64_t>& RunFile::seeds() const {
  return impl_->seeds;
}
std::vector<std::string> RunFile::dataset_paths() const {
  std::vector<std::string> paths;
  for (const auto& [path, unused] : impl_->datasets) paths.push_back(path);
  return paths;
}
const RunIdentity& RunFile::identity() const {
  return impl_->identity;
}
const std::string& RunFile::command_line() const {
  return impl_->command_line;
}
const std::map<std::string, std::string>& RunFile::environment() const {
  return impl_->environment;
}
std::optional<Verification> RunFile::verification() const {
  const RunOptions& o = options();
  if (o.capture_hash.empty()) return std::nullopt;
  auto now = read_verification(o.model, o.capture_hash);
  return now ? now : verification_from_json(impl_->verification_json, o.capture_hash);
}
const std::string& RunFile::products_json() const {
  return impl_->products_json;
}
const std::string& RunFile::batches_hash() const {
  return impl_->batches_hash;
}
const std::string& RunFile::data() const {
  return impl_->data;
}

const std::string& RunFile::graph_json() const {
  return impl_->graph_json;
}
const ScriptLines& RunFile::lines() const {
  return impl_->lines;
}
const std::vector<std::string>& RunFile::watched() const {
  return impl_->watched;
}
const SiteTable& RunFile::sites() const {
  return impl_->sites;
}
const std::vector<LaneInfo>& RunFile::lanes() const {
  return impl_->lanes;
}

int RunFile::lane_index(std::string_view name) const {
  std::vector<std::string> names;
  for (const LaneInfo& lane : impl_->lanes) {
    if (lane.name == name) return static_cast<int>(names.size());
    names.push_back(lane.name);
  }
  throw InputError(fmt::format("run file '{}': no lane '{}'", impl_->path, name),
                   did_you_mean(name, names));
}

}  // namespace lockstep

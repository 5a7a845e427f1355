// Opens a run file and reads its description. Extents are never trusted: only the rows up to
// `steps_complete` count.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "src/core/text.h"
#include "src/record/capture/capture_block.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/options_json.h"
#include "src/record/run/run_file_impl.h"
#include "src/record/run/run_file_names.h"
#include "src/record/run/run_identity.h"
#include "src/record/run/site_table_io.h"
#include "src/train/lane_name.h"

namespace lockstep {

void RunFile::Impl::open(bool allow_empty, std::optional<uint64_t> seed) {
  hdf5::be_quiet();
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) {
    throw InputError(
        fmt::format("run file '{}': {}", path, status ? status.message() : "not a regular file"));
  }
  if (::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) != 0) {
    throw InputError(fmt::format("run file '{}': cannot be read: {}", path, std::strerror(errno)),
                     "are its permissions right?");
  }
  if (looks_like_capture(path)) {
    throw InputError(fmt::format("run file '{}': is a capture, must be a run file", path),
                     fmt::format("`lockstep replay {} -o run.h5` makes a run file from it", path));
  }
  if (H5Fis_hdf5(path.c_str()) <= 0) {
    throw InputError(fmt::format("run file '{}': not an HDF5 file", path),
                     "a run file is what `lockstep replay -o` writes");
  }
  const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
  H5Pset_file_locking(access.id(), false, true);  // for file systems without locks
  file = hdf5::Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "open it");
  root = hdf5::open_group(file.id(), "/");
  if (!hdf5::has_attribute(root.id(), run_names::kFormat) ||
      hdf5::text_attribute(root.id(), run_names::kFormat) != run_names::kRunFormat) {
    throw InputError(fmt::format("run file '{}': an HDF5 file, but not a run file", path),
                     "a run file is what `lockstep replay -o` writes");
  }
  version = hdf5::int_attribute(root.id(), run_names::kFormatVersion);
  if (version > kRunFormatVersion) {
    throw InputError(
        fmt::format("run file '{}': format version {}, at most {} is supported (written by "
                    "Lockstep {})",
                    path, version, kRunFormatVersion,
                    hdf5::text_attribute(root.id(), run_names::kLockstepVersion)),
        "read it with that version of Lockstep or a newer one");
  }
  read_seeds(seed);
  steps = hdf5::int_attribute(root.id(), run_names::kStepsComplete);
  if (steps <= 0 && !allow_empty) {
    throw InputError(fmt::format("run file '{}': no complete step", path),
                     "the run was stopped before its first step ended; replay it again");
  }
}

void RunFile::Impl::read_seeds(std::optional<uint64_t> seed) {
  const auto seed_of = [](hid_t run) {
    return options_from_json(hdf5::text_attribute(run, run_names::kOptions)).seed;
  };
  std::vector<std::pair<uint64_t, hdf5::Handle>> runs;
  runs.emplace_back(seed_of(root.id()), hdf5::open_group(file.id(), "/"));
  if (hdf5::has_link(file.id(), run_names::kSeeds)) {
    const hdf5::Handle others = hdf5::open_group(file.id(), run_names::kSeeds);
    for (const std::string& link : hdf5::link_names(others.id())) {
      hdf5::Handle run = hdf5::open_group(others.id(), link);
      const uint64_t its = seed_of(run.id());
      runs.emplace_back(its, std::move(run));
    }
  }
  // Links are sorted as text ("10" before "9"); seeds are recorded in ascending order.
  std::sort(runs.begin() + 1, runs.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  bool found = !seed.has_value();
  const uint64_t wanted = seed.value_or(runs.front().first);
  for (auto& [its, run] : runs) {
    seeds.push_back(its);
    if (its != wanted) {
      other_hashes.push_back(hdf5::text_attribute(run.id(), run_names::kRunHash));
      continue;
    }
    found = true;
    root = std::move(run);
  }
  if (found) return;
  std::string known;
  for (const uint64_t its : seeds) known += fmt::format("{}{}", known.empty() ? "" : ", ", its);
  throw InputError(fmt::format("run file '{}': no seed {}", path, wanted), "it holds " + known);
}

void RunFile::Impl::read_description() {
  const hid_t root = this->root.id();
  options = options_from_json(hdf5::text_attribute(root, run_names::kOptions));
  command_line = hdf5::text_attribute(root, run_names::kCommandLine);
  data = hdf5::text_attribute(root, run_names::kData);
  if (hdf5::has_attribute(root, run_names::kBatchesHash)) {
    batches_hash = hdf5::text_attribute(root, run_names::kBatchesHash);
  }
  if (hdf5::has_attribute(root, run_names::kVerification)) {
    verification_json = hdf5::text_attribute(root, run_names::kVerification);
  }
  environment = nlohmann::json::parse(hdf5::text_attribute(root, run_names::kEnvironment))
                    .get<std::map<std::string, std::string>>();
  graph_json = hdf5::read_text(root, run_names::kGraph);
  if (H5Lexists(root, run_names::kProducts, H5P_DEFAULT) > 0) {
    products_json = hdf5::read_text(root, run_names::kProducts);
  }
  sites = read_sites(root);
  const hdf5::Handle group = hdf5::open_group(root, run_names::kLanes);
  for (const std::string& name : lane_names(root)) {
    const hdf5::Handle lane = hdf5::open_group(group.id(), hdf5::escape_link(name));
    LaneInfo& info = lanes.emplace_back();
    info.name = name;
    info.engine = hdf5::text_attribute(lane.id(), run_names::kEngine);
    info.target = hdf5::text_attribute(lane.id(), run_names::kTarget);
    const std::string fallbacks = hdf5::text_attribute(lane.id(), run_names::kFallbacks);
    if (!fallbacks.empty()) info.fallbacks = split(fallbacks, ',');
    const hdf5::Handle scaler = hdf5::open_group(lane.id(), run_names::kLossScale);
    if (hdf5::has_attribute(scaler.id(), run_names::kScalerLosses)) {
      info.scaler_losses = split(hdf5::text_attribute(scaler.id(), run_names::kScalerLosses), ',');
    }
    info.policy_text = hdf5::read_text(lane.id(), run_names::kPolicy);
    info.is_reference = hdf5::int_attribute(lane.id(), run_names::kIsReference) != 0;
    info.died_at = hdf5::int_attribute(lane.id(), run_names::kDiedAt);
    if (hdf5::has_attribute(lane.id(), run_names::kDiedOf)) {
      info.died_of = static_cast<DeathCause>(hdf5::int_attribute(lane.id(), run_names::kDiedOf));
    }
    if (hdf5::has_attribute(lane.id(), run_names::kWarnings)) {
      info.warnings = split(hdf5::text_attribute(lane.id(), run_names::kWarnings), '\n');
    }
    if (H5Lexists(lane.id(), run_names::kSiteFormats, H5P_DEFAULT) > 0) {
      info.site_formats = hdf5::read_texts(lane.id(), run_names::kSiteFormats);
      if (info.site_formats.size() != sites.sites.size()) {
        damaged("lane '" + name + "': site_formats does not have a row per site");
      }
    }
    if (hdf5::has_attribute(lane.id(), run_names::kMemory)) {
      info.memory = memory_facts_from_json(hdf5::text_attribute(lane.id(), run_names::kMemory));
    }
    if (info.died_at >= steps) info.died_at = -1;  // recorded in a step that was not completed
  }
  if (lanes.empty()) damaged("it has no lanes");
  // Only for files, which may be gone; presets are in the program, and resuming compares texts.
  for (const LaneInfo& lane : lanes) {
    if (parse_lane_name(lane.name).policy.ends_with(".toml")) {
      options.policy_texts[lane.name] = lane.policy_text;
    }
  }
}

RunFile::RunFile(const std::string& path, bool allow_empty, std::optional<uint64_t> seed)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->guard([&] { impl_->open(allow_empty, seed); });
  impl_->guard([&] { impl_->read_description(); });
}
RunFile::~RunFile() = default;
RunFile::RunFile(RunFile&&) noexcept = default;

const std::string& RunFile::path() const {
  return impl_->path;
}
int64_t RunFile::steps() const {
  return impl_->steps;
}
const RunOptions& RunFile::options() const {
  return impl_->options;
}
const std::vector<uint64_t>& RunFile::seeds() const {
  return impl_->seeds;
}
const std::vector<std::string>& RunFile::hashes_of_other_seeds() const {
  return impl_->other_hashes;
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

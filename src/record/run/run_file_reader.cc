// Reading a run file. Extents are never trusted: rows count as far as `steps_complete` says.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/capture/capture_block.h"
#include "src/record/hdf5/growing_dataset.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/layout.h"
#include "src/record/run/options_json.h"
#include "src/record/run/run_file.h"
#include "src/record/run/run_identity.h"
#include "src/record/run/site_table_io.h"
#include "src/train/lane_name.h"

namespace lockstep {

struct RunFile::Impl {
  std::string path;
  hdf5::Handle file;
  int64_t version = 0, steps = 0;
  RunOptions options;
  std::string command_line, data, graph_json, products_json, verification_json;
  std::map<std::string, std::string> environment;
  SiteTable sites;
  std::vector<LaneInfo> lanes;
  mutable std::map<std::string, GrowingDataset> datasets;  // opened so far, by path

  template <typename Work>
  auto guard(Work work) const {
    try {
      return work();
    } catch (const hdf5::Error& error) {
      damaged(error.what());
    } catch (const nlohmann::json::exception& error) {
      damaged(error.what());
    }
  }
  [[noreturn]] void damaged(const std::string& why) const {
    throw InputError(fmt::format("run file '{}' is damaged: {}", path, why),
                     "is it a complete copy of the file that replay wrote?");
  }
  void open(bool allow_empty);
  void read_description();

  std::string lane_path(int lane, std::string_view name) const {
    return fmt::format("lanes/{}/{}", layout::escape(lanes.at(static_cast<size_t>(lane)).name),
                       name);
  }
  const GrowingDataset& dataset(int lane, std::string_view name) const {
    const std::string where = lane_path(lane, name);
    auto found = datasets.find(where);
    if (found == datasets.end()) {
      found = datasets.emplace(where, GrowingDataset::open(file.id(), where)).first;
    }
    return found->second;
  }
  // A row of `width` values per site.
  template <typename T>
  std::vector<T> row(int lane, std::string_view name, int64_t index, size_t width = 1) const {
    return guard([&] {
      std::vector<T> values(sites.sites.size() * width);
      dataset(lane, name).read(index, values.data());
      return values;
    });
  }
  template <typename T>
  std::vector<T> series(int lane, std::string_view name, int64_t count, size_t width = 1) const {
    std::vector<T> values(static_cast<size_t>(count) * width);
    dataset(lane, name).read_rows(0, count, values.data());
    return values;
  }
  // Of a dataset that files of earlier versions lack: empty there.
  std::vector<double> optional_series(int lane, std::string_view name, size_t width = 1) const {
    return guard([&] {
      std::vector<double> values;
      if (H5Lexists(file.id(), lane_path(lane, name).c_str(), H5P_DEFAULT) <= 0) return values;
      values.resize(static_cast<size_t>(steps) * width);
      dataset(lane, name).read_rows(0, steps, values.data());
      return values;
    });
  }
  void check_step(int64_t step) const {
    if (step >= 0 && step < steps) return;
    throw InputError(fmt::format("run file '{}': step {} asked for, steps 0 to {} are recorded",
                                 path, step, steps - 1));
  }
  void check_statistic(int lane, const std::string& group, std::string_view name) const;
  std::vector<int64_t> covered_blocks(int lane) const;
};

void RunFile::Impl::open(bool allow_empty) {
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
                     fmt::format("`lockstep replay {} -o run.h5` makes one of it", path));
  }
  if (H5Fis_hdf5(path.c_str()) <= 0) {
    throw InputError(fmt::format("run file '{}': not an HDF5 file", path),
                     "a run file is what `lockstep replay -o` writes");
  }
  const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
  H5Pset_file_locking(access.id(), false, true);  // reading from places that have no locks
  file = hdf5::Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "open it");
  const hid_t root = file.id();
  if (!hdf5::has_attribute(root, layout::kFormat) ||
      hdf5::text_attribute(root, layout::kFormat) != layout::kRunFormat) {
    throw InputError(fmt::format("run file '{}': an HDF5 file, but no run file", path),
                     "a run file is what `lockstep replay -o` writes");
  }
  version = hdf5::int_attribute(root, layout::kFormatVersion);
  if (version > kRunFormatVersion) {
    throw InputError(
        fmt::format("run file '{}': format version {}, at most {} is understood (written by "
                    "Lockstep {})",
                    path, version, kRunFormatVersion,
                    hdf5::text_attribute(root, layout::kLockstepVersion)),
        "read it with that version of Lockstep or a newer one");
  }
  steps = hdf5::int_attribute(root, layout::kStepsComplete);
  if (steps <= 0 && !allow_empty) {
    throw InputError(fmt::format("run file '{}': no complete step", path),
                     "the run was stopped before its first step ended; replay it again");
  }
}

void RunFile::Impl::read_description() {
  const hid_t root = file.id();
  options = options_from_json(hdf5::text_attribute(root, layout::kOptions));
  command_line = hdf5::text_attribute(root, layout::kCommandLine);
  data = hdf5::text_attribute(root, layout::kData);
  if (hdf5::has_attribute(root, layout::kVerification)) {
    verification_json = hdf5::text_attribute(root, layout::kVerification);
  }
  environment = nlohmann::json::parse(hdf5::text_attribute(root, layout::kEnvironment))
                    .get<std::map<std::string, std::string>>();
  graph_json = hdf5::read_text(root, layout::kGraph);
  if (H5Lexists(root, layout::kProducts, H5P_DEFAULT) > 0) {
    products_json = hdf5::read_text(root, layout::kProducts);
  }
  sites = read_sites(root);
  const hdf5::Handle group = hdf5::open_group(root, layout::kLanes);
  for (const std::string& name : lane_names(root)) {
    const hdf5::Handle lane = hdf5::open_group(group.id(), layout::escape(name));
    LaneInfo& info = lanes.emplace_back();
    info.name = name;
    info.engine = hdf5::text_attribute(lane.id(), layout::kEngine);
    info.target = hdf5::text_attribute(lane.id(), layout::kTarget);
    const std::string fallbacks = hdf5::text_attribute(lane.id(), layout::kFallbacks);
    if (!fallbacks.empty()) info.fallbacks = split(fallbacks, ',');
    const hdf5::Handle scaler = hdf5::open_group(lane.id(), "loss_scale");
    if (hdf5::has_attribute(scaler.id(), layout::kScalerLosses)) {
      info.scaler_losses = split(hdf5::text_attribute(scaler.id(), layout::kScalerLosses), ',');
    }
    info.policy_text = hdf5::read_text(lane.id(), layout::kPolicy);
    info.is_reference = hdf5::int_attribute(lane.id(), layout::kIsReference) != 0;
    info.died_at = hdf5::int_attribute(lane.id(), layout::kDiedAt);
    if (hdf5::has_attribute(lane.id(), layout::kDiedOf)) {
      info.died_of = static_cast<DeathCause>(hdf5::int_attribute(lane.id(), layout::kDiedOf));
    }
    if (hdf5::has_attribute(lane.id(), layout::kMemory)) {
      info.memory = memory_facts_from_json(hdf5::text_attribute(lane.id(), layout::kMemory));
    }
    if (info.died_at >= steps) info.died_at = -1;  // said in a step that was not completed
  }
  if (lanes.empty()) damaged("it has no lane");
  // Only files may have gone since; a preset is in the program, and resuming compares the texts.
  for (const LaneInfo& lane : lanes) {
    if (parse_lane_name(lane.name).policy.ends_with(".toml")) {
      options.policy_texts[lane.name] = lane.policy_text;
    }
  }
}

RunFile::RunFile(const std::string& path, bool allow_empty) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->guard([&] { impl_->open(allow_empty); });
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

std::vector<double> RunFile::loss(int lane) const {
  return impl_->guard([&] { return impl_->series<double>(lane, "loss", impl_->steps); });
}

std::vector<double> RunFile::named_loss(int lane, std::string_view name) const {
  return impl_->optional_series(lane, "losses/" + layout::escape(name));
}

std::vector<double> RunFile::gradient_norm(int lane) const {
  return impl_->optional_series(lane, "gradient_norm");
}

std::vector<double> RunFile::gradient_norms(int lane) const {
  return impl_->guard([&] {
    const std::string path = impl_->lane_path(lane, layout::kGradientNorms);
    if (H5Lexists(impl_->file.id(), path.c_str(), H5P_DEFAULT) <= 0) return std::vector<double>{};
    const int64_t width = impl_->dataset(lane, layout::kGradientNorms).row_shape().at(0);
    return impl_->optional_series(lane, layout::kGradientNorms, static_cast<size_t>(width));
  });
}

std::vector<double> RunFile::lr(int lane) const {
  const size_t groups = options().groups.size() + 1;
  return impl_->optional_series(lane, "lr", groups);
}

std::vector<double> RunFile::seconds(int lane) const {
  return impl_->guard([&] { return impl_->series<double>(lane, "seconds", impl_->steps); });
}

std::vector<int32_t> RunFile::attempts(int lane) const {
  return impl_->guard([&] { return impl_->series<int32_t>(lane, "attempts", impl_->steps); });
}

std::vector<Evaluation> RunFile::evaluations(int lane) const {
  return impl_->guard([&] {
    const int64_t rows = std::min({impl_->dataset(lane, "eval/steps_done").rows(),
                                   impl_->dataset(lane, "eval/loss").rows(),
                                   impl_->dataset(lane, "eval/accuracy").rows(),
                                   impl_->dataset(lane, "eval/example_count").rows()});
    const auto steps_done = impl_->series<int64_t>(lane, "eval/steps_done", rows);
    const auto loss = impl_->series<double>(lane, "eval/loss", rows);
    const auto accuracy = impl_->series<double>(lane, "eval/accuracy", rows);
    const auto example_count = impl_->series<int64_t>(lane, "eval/example_count", rows);
    std::vector<Evaluation> evaluations;
    for (size_t i = 0; i < steps_done.size() && steps_done[i] <= impl_->steps; ++i) {
      evaluations.push_back({steps_done[i], loss[i], accuracy[i], example_count[i]});
    }
    return evaluations;
  });
}

size_t RunFile::scaler_columns(int lane) const {
  return impl_->guard([&] {
    return static_cast<size_t>(impl_->dataset(lane, "loss_scale/scale").row_shape().at(0));
  });
}

std::vector<ScalerRecord> RunFile::scalers(int lane, size_t column) const {
  const size_t width = scaler_columns(lane);
  if (column >= width) {
    throw InputError(fmt::format("run file '{}': scaler column {}: at most {} required",
                                 impl_->path, column, width - 1));
  }
  return impl_->guard([&] {
    const int64_t n = impl_->steps;
    const auto scale = impl_->series<double>(lane, "loss_scale/scale", n, width);
    const auto found_inf = impl_->series<uint8_t>(lane, "loss_scale/found_inf", n, width);
    const auto skipped = impl_->series<uint8_t>(lane, "loss_scale/skipped", n, width);
    const auto tracker = impl_->series<int32_t>(lane, "loss_scale/growth_tracker", n, width);
    const auto culprit = impl_->series<int32_t>(lane, "loss_scale/culprit_site", n, width);
    std::vector<ScalerRecord> records;
    for (size_t i = column; i < scale.size(); i += width) {
      records.push_back({scale[i], found_inf[i] != 0, skipped[i] != 0, tracker[i], culprit[i]});
    }
    return records;
  });
}

std::vector<double> RunFile::scale(int lane, int64_t step) const {
  impl_->check_step(step);
  return impl_->row<double>(lane, "scale", step);
}
std::vector<uint64_t> RunFile::bits_hash(int lane, int64_t step) const {
  impl_->check_step(step);
  return impl_->row<uint64_t>(lane, "bits_hash", step);
}

void RunFile::Impl::check_statistic(int lane, const std::string& group,
                                    std::string_view name) const {
  const hdf5::Handle parent = hdf5::open_group(file.id(), lane_path(lane, group));
  const std::vector<std::string> names = hdf5::link_names(parent.id());
  for (const std::string& known : names) {
    if (known == name) return;
  }
  throw InputError(fmt::format("run file '{}': no statistic '{}' among its {}", path, name, group),
                   did_you_mean(name, names));
}
std::vector<uint64_t> RunFile::count(int lane, std::string_view statistic, int64_t step) const {
  impl_->check_step(step);
  impl_->guard([&] { impl_->check_statistic(lane, "counts", statistic); });
  return impl_->row<uint64_t>(lane, fmt::format("counts/{}", statistic), step);
}
std::vector<double> RunFile::moment(int lane, std::string_view statistic, int64_t step) const {
  impl_->check_step(step);
  impl_->guard([&] { impl_->check_statistic(lane, "moments", statistic); });
  return impl_->row<double>(lane, fmt::format("moments/{}", statistic), step);
}

std::vector<int64_t> RunFile::histogram_steps(int lane) const {
  return impl_->guard([&] {
    const int64_t rows = std::min(impl_->dataset(lane, layout::kHistogramStep).rows(),
                                  impl_->dataset(lane, layout::kHistogram).rows());
    auto steps = impl_->series<int64_t>(lane, layout::kHistogramStep, rows);
    while (!steps.empty() && steps.back() >= impl_->steps) steps.pop_back();
    return steps;
  });
}
std::vector<uint32_t> RunFile::histogram(int lane, int64_t record) const {
  return impl_->row<uint32_t>(lane, layout::kHistogram, record, kHistogramBins);
}

std::vector<int64_t> RunFile::sums_steps(int lane) const {
  const std::string name = std::string(layout::kSums) + "/step";
  return impl_->guard([&]() -> std::vector<int64_t> {
    if (impl_->version < 3) return {};  // not measured
    auto steps = impl_->series<int64_t>(lane, name, impl_->dataset(lane, name).rows());
    while (!steps.empty() && steps.back() >= impl_->steps) steps.pop_back();
    return steps;
  });
}
std::vector<AccumulatorHealth> RunFile::sums(int lane) const {
  const std::string group = std::string(layout::kSums) + "/";
  const std::vector<int64_t> steps = sums_steps(lane);
  std::vector<AccumulatorHealth> total(impl_->sites.sites.size());
  for (size_t row = 0; row < steps.size(); ++row) {
    std::vector<AccumulatorHealth> here(total.size());
    for (const HealthColumn& column : health_columns()) {
      const auto take = [&](const auto& values, auto member) {
        for (size_t s = 0; s < here.size(); ++s) here[s].*member = values[s];
      };
      const auto at = static_cast<int64_t>(row);
      if (column.count != nullptr) {
        take(impl_->row<uint64_t>(lane, group + column.name, at), column.count);
      } else {
        take(impl_->row<double>(lane, group + column.name, at), column.moment);
      }
    }
    for (size_t s = 0; s < total.size(); ++s) total[s].merge(here[s]);
  }
  return total;
}

// Steps that each row of 50-step sums covers; 0 where the row is not complete.
std::vector<int64_t> RunFile::Impl::covered_blocks(int lane) const {
  const int64_t rows = std::min(dataset(lane, layout::kHistogram50Steps).rows(),
                                dataset(lane, layout::kHistogram50).rows());
  auto covered = series<int64_t>(lane, layout::kHistogram50Steps, rows);
  for (size_t i = 0; i < covered.size(); ++i) {
    if (static_cast<int64_t>(i) * layout::kHistogramBlock + covered[i] > steps) covered[i] = 0;
  }
  return covered;
}
std::vector<uint64_t> RunFile::total_histogram(int lane) const {
  const auto covered = impl_->guard([&] { return impl_->covered_blocks(lane); });
  std::vector<uint64_t> total(impl_->sites.sites.size() * kHistogramBins, 0);
  for (size_t i = 0; i < covered.size(); ++i) {
    if (covered[i] == 0) continue;
    const auto sums =
        impl_->row<uint64_t>(lane, layout::kHistogram50, static_cast<int64_t>(i), kHistogramBins);
    for (size_t j = 0; j < total.size(); ++j) total[j] += sums[j];
  }
  return total;
}
int64_t RunFile::total_histogram_steps(int lane) const {
  int64_t steps = 0;
  for (const int64_t n : impl_->guard([&] { return impl_->covered_blocks(lane); })) steps += n;
  return steps;
}

std::vector<UpdateRecord> RunFile::updates(int lane, int64_t step) const {
  impl_->check_step(step);
  const auto stagnant = impl_->row<uint64_t>(lane, "updates/stagnant", step);
  const auto count = impl_->row<uint64_t>(lane, "updates/count", step);
  const auto update_sq = impl_->row<double>(lane, "updates/update_sq", step);
  const auto weight_sq = impl_->row<double>(lane, "updates/weight_sq", step);
  std::vector<UpdateRecord> records(stagnant.size());
  for (size_t i = 0; i < records.size(); ++i) {
    // A measured site has an update_sq, a number or not: only count and NaN together mean none.
    records[i].measured = count[i] > 0 || update_sq[i] == update_sq[i];
    records[i].stats = {stagnant[i], count[i], update_sq[i], weight_sq[i]};
  }
  return records;
}

}  // namespace lockstep

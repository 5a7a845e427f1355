#include "src/record/run/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "src/core/error.h"
#include "src/record/hdf5/commit_driver.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/run_file.h"
#include "src/record/run/run_file_names.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string newest_path(const std::string& run_path) {
  return run_path + ".state";
}
std::string older_path(const std::string& run_path) {
  return run_path + ".state.1";
}

hid_t type_of(Container container) {
  switch (container) {
    case Container::kF32:
      return H5T_NATIVE_FLOAT;
    case Container::kF64:
      return H5T_NATIVE_DOUBLE;
    case Container::kI32:
      return H5T_NATIVE_INT32;
  }
  return -1;
}

Container container_of_dataset(hid_t dataset) {
  const hdf5::Handle type(H5Dget_type(dataset), "read a type");
  for (const Container c : {Container::kF32, Container::kF64, Container::kI32}) {
    if (H5Tequal(type.id(), type_of(c)) > 0) return c;
  }
  throw hdf5::Error("a tensor of unknown element type");
}

// One column per number of a scaler's state, one row per scaler.
void write_scalers(hid_t lane, const std::vector<LossScaleState>& scalers) {
  const hdf5::Handle group = hdf5::create_group(lane, "scalers");
  for (const LossScaleField& field : loss_scale_fields()) {
    std::vector<double> column;
    for (const LossScaleState& scaler : scalers) column.push_back(field.get(scaler));
    hdf5::write_column(group.id(), std::string(field.name), column);
  }
}

std::vector<LossScaleState> read_scalers(hid_t lane) {
  const hdf5::Handle group = hdf5::open_group(lane, "scalers");
  std::vector<LossScaleState> scalers;
  for (const LossScaleField& field : loss_scale_fields()) {
    const auto column = hdf5::read_column<double>(group.id(), std::string(field.name));
    scalers.resize(column.size());
    for (size_t i = 0; i < column.size(); ++i) field.set(scalers[i], column[i]);
  }
  return scalers;
}

void write_state(hid_t root, const RunStateView& run, const RecordState& record) {
  hdf5::write_attribute(root, run_names::kFormat, std::string(run_names::kStateFormat));
  hdf5::write_attribute(root, run_names::kFormatVersion, run_names::kStateFormatVersion);
  hdf5::write_attribute(root, run_names::kRunHash, record.run_hash);
  hdf5::write_attribute(root, "steps_done", run.steps_done);
  const hdf5::Handle lanes = hdf5::create_group(root, run_names::kLanes);
  for (size_t i = 0; i < run.lanes.size(); ++i) {
    const LaneStateView& lane = run.lanes[i];
    const hdf5::Handle group = hdf5::create_group(lanes.id(), std::to_string(i));
    hdf5::write_attribute(group.id(), "name", record.lane_names.at(i));
    write_scalers(group.id(), lane.scalers);
    hdf5::write_column(group.id(), "optimizer_steps", lane.optimizer_steps);
    hdf5::write_column(group.id(), "missed_steps", lane.missed);
    hdf5::write_attribute(group.id(), run_names::kDiedAt, lane.died_at);
    hdf5::write_attribute(group.id(), run_names::kDiedOf, static_cast<int64_t>(lane.died_of));
    hdf5::write_attribute(group.id(), "nonfinite_since", lane.nonfinite_since);
    const hdf5::Handle tensors = hdf5::create_group(group.id(), "tensors");
    for (const auto& [name, tensor] : lane.tensors) {
      hdf5::write_array(tensors.id(), hdf5::escape_link(name), type_of(tensor->container()),
                        tensor->shape(), tensor->raw());
    }
    hdf5::write_column(group.id(), "unfinished_sums", record.unfinished_sums.at(i));
  }
}

Checkpoint read_state(hid_t root) {
  Checkpoint checkpoint;
  checkpoint.record.run_hash = hdf5::text_attribute(root, run_names::kRunHash);
  checkpoint.run.steps_done = hdf5::int_attribute(root, "steps_done");
  const hdf5::Handle lanes = hdf5::open_group(root, run_names::kLanes);
  const size_t count = hdf5::link_names(lanes.id()).size();
  for (size_t i = 0; i < count; ++i) {
    const hdf5::Handle group = hdf5::open_group(lanes.id(), std::to_string(i));
    LaneState& lane = checkpoint.run.lanes.emplace_back();
    checkpoint.record.lane_names.push_back(hdf5::text_attribute(group.id(), "name"));
    lane.scalers = read_scalers(group.id());
    lane.optimizer_steps = hdf5::read_column<int64_t>(group.id(), "optimizer_steps");
    lane.missed = hdf5::read_column<int64_t>(group.id(), "missed_steps");
    lane.died_at = hdf5::int_attribute(group.id(), run_names::kDiedAt);
    lane.died_of = static_cast<DeathCause>(hdf5::int_attribute(group.id(), run_names::kDiedOf));
    lane.nonfinite_since = hdf5::int_attribute(group.id(), "nonfinite_since");
    const hdf5::Handle tensors = hdf5::open_group(group.id(), "tensors");
    for (const std::string& link : hdf5::link_names(tensors.id())) {
      const hdf5::Handle dataset(H5Dopen2(tensors.id(), link.c_str(), H5P_DEFAULT),
                                 "open tensor " + link);
      const Container container = container_of_dataset(dataset.id());
      Tensor tensor(hdf5::array_shape(dataset.id()), container);
      hdf5::read_array(tensors.id(), link, type_of(container), tensor.raw());
      lane.tensors[hdf5::unescape_link(link)] = std::move(tensor);
    }
    checkpoint.record.unfinished_sums.push_back(
        hdf5::read_column<uint64_t>(group.id(), "unfinished_sums"));
  }
  return checkpoint;
}

// All damage is reported in the same way, whatever HDF5 finds.
std::optional<Checkpoint> read_if_not_past(const std::string& path, int64_t limit,
                                           const std::vector<std::string>& others) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) {
    throw InputError(fmt::format("checkpoint '{}': {}", path, error.message()),
                     "are the folder's permissions right?");
  }
  if (!fs::exists(status)) return std::nullopt;
  hdf5::be_quiet();
  try {
    const hdf5::Handle access(commit_driver_access(), "set up the file driver");
    const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "open it");
    const hdf5::Handle root = hdf5::open_group(file.id(), "/");
    if (hdf5::text_attribute(root.id(), run_names::kFormat) != run_names::kStateFormat) {
      throw hdf5::Error("it is not a checkpoint");
    }
    const int64_t version = hdf5::int_attribute(root.id(), run_names::kFormatVersion);
    if (version != run_names::kStateFormatVersion) {
      throw InputError(fmt::format("checkpoint '{}': format version {}, must be {}", path, version,
                                   run_names::kStateFormatVersion),
                       "continue with the version of Lockstep that wrote it");
    }
    if (hdf5::int_attribute(root.id(), "steps_done") > limit) return std::nullopt;
    const std::string hash = hdf5::text_attribute(root.id(), run_names::kRunHash);
    if (std::ranges::count(others, hash) > 0) return std::nullopt;
    return read_state(root.id());
  } catch (const hdf5::Error& error) {
    throw InputError(fmt::format("checkpoint '{}' is damaged: {}", path, error.what()),
                     "remove it to continue from the previous checkpoint, or from step 0");
  }
}

[[noreturn]] void fail(const std::string& path, int error, const std::string& otherwise) {
  throw WriteError(fmt::format("cannot write checkpoint '{}': {}", path,
                               error != 0 ? std::strerror(error) : otherwise));
}

}  // namespace

void write_checkpoint(const std::string& run_path, const RunStateView& run,
                      const RecordState& record) {
  const std::string path = newest_path(run_path), temporary = path + ".tmp";
  hdf5::be_quiet();
  int error = 0;
  std::string problem;
  {
    hdf5::Handle file;
    try {
      const hdf5::Handle access(commit_driver_access(), "set up the file driver");
      file = hdf5::Handle(H5Fcreate(temporary.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()),
                          "create it");
      write_state(file.id(), run, record);
      hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), "flush it");
      commit_and_sync(commit_file(file.id()));
    } catch (const hdf5::Error& e) {
      problem = e.what();
    }
    if (file) error = write_error(commit_file(file.id()));
  }
  if (error != 0 || !problem.empty()) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    fail(path, error, problem);
  }
  std::error_code status;
  if (fs::exists(path)) fs::rename(path, older_path(run_path), status);
  if (!status) fs::rename(temporary, path, status);
  if (status) fail(path, status.value(), "");
}

std::optional<Checkpoint> find_checkpoint(const std::string& run_path, int64_t limit,
                                          const std::vector<std::string>& others) {
  std::optional<Checkpoint> newest = read_if_not_past(newest_path(run_path), limit, others);
  return newest ? std::move(newest) : read_if_not_past(older_path(run_path), limit, others);
}

Checkpoint read_checkpoint_file(const std::string& path) {
  std::optional<Checkpoint> found = read_if_not_past(path, std::numeric_limits<int64_t>::max(), {});
  if (found) return *std::move(found);
  throw InputError(fmt::format("checkpoint '{}': no such file", path),
                   "`lockstep replay -o RUN` writes RUN.state next to RUN");
}

void remove_checkpoints(const std::string& run_path) {
  std::error_code ignored;
  fs::remove(newest_path(run_path), ignored);
  fs::remove(older_path(run_path), ignored);
}

std::optional<RunState> read_checkpoint(const std::string& run_path, int64_t steps_complete,
                                        const std::vector<std::string>& others) {
  std::optional<Checkpoint> found = find_checkpoint(run_path, steps_complete, others);
  if (!found) return std::nullopt;
  return std::move(found->run);
}

}  // namespace lockstep

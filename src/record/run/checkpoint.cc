#include "src/record/run/checkpoint.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/hdf5/commit_driver.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/hdf5/sandboxed_file.h"
#include "src/record/hdf5/stored_fields.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/run_file_names.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlockBytes = 4096;  // HDF5 needs at least the driver's alignment

std::string newest_path(const std::string& run_path) {
  return run_path + ".state";
}
std::string older_path(const std::string& run_path) {
  return run_path + ".state.1";
}

hid_t container_type(Container container) {
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

// One column per number of a scaler's state, one row per scaler.
void write_scalers(hid_t lane, const std::vector<LossScaleState>& scalers) {
  const hdf5::Handle group = hdf5::create_group(lane, "scalers");
  for (const LossScaleField& field : loss_scale_fields()) {
    std::vector<double> column;
    for (const LossScaleState& scaler : scalers) column.push_back(field.get(scaler));
    hdf5::write_column(group.id(), std::string(field.name), column);
  }
}

std::vector<LossScaleState> read_scalers(const StoredFields& group) {
  std::vector<LossScaleState> scalers;
  bool is_first = true;
  for (const LossScaleField& field : loss_scale_fields()) {
    const StoredFields at = group.child(field.name);
    const std::vector<double> column = at.numbers();
    if (is_first) scalers.resize(column.size());
    is_first = false;
    if (column.size() != scalers.size()) {
      at.problem(fmt::format("has {} rows, must have {}", column.size(), scalers.size()));
      return scalers;
    }
    for (size_t i = 0; i < column.size(); ++i) {
      constexpr double kMost = 0x1p62;  // fits every field: counts are integers of 64 bits
      if (std::abs(column[i]) <= kMost) {
        field.set(scalers[i], column[i]);
      } else {
        at.problem(fmt::format("is {}, must be at most {}", column[i], kMost));
      }
    }
  }
  return scalers;
}

std::vector<int64_t> read_counts(const StoredFields& column) {
  std::vector<int64_t> counts;
  for (const uint64_t count : column.take_whole()) {
    if (count > INT64_MAX) {
      column.problem(fmt::format("is {}, must be at most {}", count, INT64_MAX));
      return {};
    }
    counts.push_back(static_cast<int64_t>(count));
  }
  return counts;
}

// A tensor of the stored type. Its data leave the tree.
Tensor take_any_tensor(const StoredFields& dataset) {
  StoredValue* value = dataset.value();
  if (value == nullptr) return {};
  Tensor tensor;
  if (value->kind == StoredValue::Kind::kF32) {
    tensor = Tensor(value->shape, Container::kF32);
  } else if (value->kind == StoredValue::Kind::kF64) {
    tensor = Tensor(value->shape, Container::kF64);
  } else if (value->kind == StoredValue::Kind::kI32) {
    tensor = Tensor(value->shape, Container::kI32);
  } else {
    dataset.problem("must be float32, float64 or int32");
    return {};
  }
  if (tensor.bytes() > 0) std::memcpy(tensor.raw(), value->bytes.data(), tensor.bytes());
  std::string().swap(value->bytes);
  return tensor;
}

void write_state(hid_t root, const RunStateView& run, const RecordState& record) {
  hdf5::write_attribute(root, run_names::kFormat, std::string(run_names::kStateFormat));
  hdf5::write_attribute(root, run_names::kFormatVersion, run_names::kStateFormatVersion);
  hdf5::write_attribute(root, run_names::kRunHash, record.run.hash);
  hdf5::write_attribute(root, run_names::kRunId, record.run.id);
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
      hdf5::write_array(tensors.id(), hdf5::escape_link(name), container_type(tensor->container()),
                        tensor->shape(), tensor->raw());
    }
    hdf5::write_column(group.id(), "unfinished_sums", record.unfinished_sums.at(i));
  }
}

LaneState read_lane(const StoredFields& group) {
  LaneState lane;
  lane.scalers = read_scalers(group.child("scalers"));
  lane.optimizer_steps = read_counts(group.child("optimizer_steps"));
  lane.missed = read_counts(group.child("missed_steps"));
  lane.died_at = group.integer(run_names::kDiedAt, -1);
  lane.died_of = read_death_cause(group);
  lane.nonfinite_since = group.integer("nonfinite_since", -1);
  const StoredFields tensors = group.child("tensors");
  for (const std::string& name : tensors.children()) {
    lane.tensors[name] = take_any_tensor(tensors.child(name));
  }
  return lane;
}

// The identity and the number of steps alone, or everything.
enum class Part : uint8_t { kHead, kWhole };

Checkpoint read_part(const std::string& path, const FileBlock& block, Part part) {
  DumpRequest request;
  request.block = block.size;
  request.most_bytes = kLeastFileContent + block.length;
  request.wanted = [part](std::string_view) {
    return part == Part::kHead ? Wanted::kNothing : Wanted::kContents;
  };
  SandboxedFile file(path, request, limits_of_file(block.length));
  ProblemList problems(fmt::format("checkpoint '{}' is damaged", path));
  const StoredFields root(&file.tree(), "", problems);
  if (const std::string format = root.text(run_names::kFormat); format != run_names::kStateFormat) {
    root.problem(fmt::format("format is '{}', must be '{}'", format, run_names::kStateFormat));
  }
  const int64_t version = root.integer(run_names::kFormatVersion, 0);
  if (version != run_names::kStateFormatVersion) {
    throw InputError(fmt::format("checkpoint '{}': format version {}, must be {}", path, version,
                                 run_names::kStateFormatVersion),
                     "continue with the version of Lockstep that wrote it");
  }
  Checkpoint checkpoint;
  checkpoint.record.run = {root.text(run_names::kRunHash), root.text(run_names::kRunId)};
  checkpoint.run.steps_done = root.integer("steps_done", 0);
  if (part == Part::kWhole) {
    const StoredFields lanes = root.child(run_names::kLanes);
    const size_t count = lanes.children().size();
    for (size_t i = 0; i < count; ++i) {
      const StoredFields lane = lanes.child(std::to_string(i));
      checkpoint.record.lane_names.push_back(lane.text("name"));
      checkpoint.run.lanes.push_back(read_lane(lane));
      checkpoint.record.unfinished_sums.push_back(lane.child("unfinished_sums").take_whole());
    }
  }
  problems.throw_if_any();
  return checkpoint;
}

// All damage is reported in the same way.
std::optional<Checkpoint> read_once(const std::string& path, int64_t limit,
                                    const RunIdentity& run) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) {
    throw InputError(fmt::format("checkpoint '{}': {}", path, std::strerror(error.value())),
                     "are the folder's permissions right?");
  }
  if (!fs::exists(status)) return std::nullopt;
  const std::string hint = "remove it to continue from the previous checkpoint, or from step 0";
  const auto failed = [&](const std::string& why) {
    return fmt::format("checkpoint '{}': reading it in a separate process failed: {}", path, why);
  };
  try {
    const FileBlock block = check_file_block(path, kCheckpointBlock);
    const Checkpoint head = read_part(path, block, Part::kHead);
    if (head.run.steps_done > limit || !head.record.run.fits(run)) return std::nullopt;
    return read_part(path, block, Part::kWhole);
  } catch (const InputError& e) {
    std::vector<std::string> problems = e.lines();
    problems.back() += "; " + hint;
    if (has_block(path, kCheckpointBlock)) {
      throw DamagedFile(fmt::format("checkpoint '{}' is damaged", path), problems);
    }
    throw InputError(fmt::format("checkpoint '{}' cannot be used", path), problems);
  } catch (const hdf5::Error& e) {
    constexpr size_t kMostBytes = 2000;
    throw DamagedFile(
        fmt::format("checkpoint '{}' is damaged: {}", path, printable(e.what(), kMostBytes)), hint);
  } catch (const SandboxError& e) {
    if (e.is_of_machine()) throw InputError(failed(e.what()), "try again");
    throw DamagedFile(failed(e.what()), hint);
  } catch (const std::runtime_error& e) {
    throw DamagedFile(failed(e.what()), hint);
  }
}

// While the run goes on, its checkpoints are renamed: a reader may meet parts of two.
std::optional<Checkpoint> read_if_not_past(const std::string& path, int64_t limit,
                                           const RunIdentity& run) {
  return read_while_written<InputError>(path.substr(0, path.rfind(".state")),
                                        [&] { return read_once(path, limit, run); });
}

[[noreturn]] void fail(const std::string& path, int error, const std::string& otherwise) {
  throw WriteError(fmt::format("cannot write checkpoint '{}': {}", path,
                               error != 0 ? std::strerror(error) : otherwise),
                   error, /*has_steps=*/true);  // it is written after a step
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
      const hdf5::Handle creation(H5Pcreate(H5P_FILE_CREATE), "make a property list");
      hdf5::check(H5Pset_userblock(creation.id(), kBlockBytes), "leave space for its block");
      errno = 0;
      file = hdf5::Handle(H5Fcreate(temporary.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()),
                          "create it");
      write_state(file.id(), run, record);
      hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), "flush it");
      commit(commit_file(file.id()));
    } catch (const hdf5::Error& e) {
      problem = e.what();
      error = errno;
    }
    if (file) error = write_error(commit_file(file.id()));
  }
  if (error == 0 && problem.empty()) {
    error = write_file_block(temporary, kCheckpointBlock, kBlockBytes);
  }
  if (error != 0 || !problem.empty()) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    fail(path, error, problem);
  }
  std::error_code status;
  fs::rename(path, older_path(run_path), status);
  if (status == std::errc::no_such_file_or_directory) status.clear();  // the first checkpoint
  if (!status) fs::rename(temporary, path, status);
  if (status) fail(path, status.value(), "");
}

bool RunIdentity::fits(const RunIdentity& other) const {
  const auto agree = [](const std::string& a, const std::string& b) {
    return a.empty() || b.empty() || a == b;
  };
  return agree(hash, other.hash) && agree(id, other.id);
}

std::optional<Checkpoint> find_checkpoint(const std::string& run_path, int64_t limit,
                                          const RunIdentity& run) {
  std::optional<Checkpoint> newest = read_if_not_past(newest_path(run_path), limit, run);
  return newest ? std::move(newest) : read_if_not_past(older_path(run_path), limit, run);
}

Checkpoint read_checkpoint_file(const std::string& path) {
  std::optional<Checkpoint> found = read_if_not_past(path, std::numeric_limits<int64_t>::max(), {});
  if (found) return *std::move(found);
  throw InputError(fmt::format("checkpoint '{}': no such file", path),
                   "`lockstep replay -o RUN` writes RUN.state next to RUN");
}

std::vector<std::string> checkpoint_paths(const std::string& run_path) {
  return {newest_path(run_path), older_path(run_path)};
}

void remove_checkpoints(const std::string& run_path) {
  std::error_code ignored;
  for (const std::string& path : checkpoint_paths(run_path)) fs::remove(path, ignored);
}

std::optional<RunState> read_checkpoint(const std::string& run_path, int64_t steps_complete,
                                        const RunIdentity& run) {
  std::optional<Checkpoint> found = find_checkpoint(run_path, steps_complete, run);
  if (!found) return std::nullopt;
  return std::move(found->run);
}

}  // namespace lockstep

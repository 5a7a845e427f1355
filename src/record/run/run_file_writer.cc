// The observer that writes the run file. A step: every lane's rows, flush, commit,
// `steps_complete`, flush, commit. If it is stopped between any two writes, the file reads up to
// `steps_complete`.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>

#include "src/core/error.h"
#include "src/core/text_file.h"
#include "src/graph/json.h"
#include "src/lower/layer_facts.h"
#include "src/record/capture/verification.h"
#include "src/record/hdf5/commit_driver.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/hdf5/sandboxed_file.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/environment.h"
#include "src/record/run/lane_recorder.h"
#include "src/record/run/options_json.h"
#include "src/record/run/progress_snapshot.h"
#include "src/record/run/run_checksum.h"
#include "src/record/run/run_file_names.h"
#include "src/record/run/run_identity.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "src/record/run/site_table_io.h"

namespace lockstep {

namespace fs = std::filesystem;

struct RunFileWriter::Impl {
  std::string path, temporary, command_line;
  std::shared_ptr<RunLock> lock;  // before `file`, which is closed first
  hdf5::Handle file;              // closed after everything in it
  std::string group = "/";        // of the run in the file
  std::optional<uint64_t> seed;   // absent: the file's first
  std::optional<uint64_t> first_seed;
  std::vector<LaneRecorder> lanes;
  SiteTable sites;
  RecordState record;
  std::vector<int64_t> evaluated;  // steps_done of every evaluation in the file
  int64_t steps_complete = 0, steps_done = 0;
  bool resumed = false, failed = false, record_opened = false, short_rows_dropped = false;
  bool replaces = false;                 // a run at `path`, which stays until this one has a step
  std::optional<RunFile> before;         // resumed: the file as it was
  std::optional<Checkpoint> checkpoint;  // resumed from
  std::optional<ProgressSnapshot> progress;
  FindingsSoFar findings;

  ~Impl() {
    lanes.clear();
    file.close();
    if (temporary.empty()) return;  // the file already has its name
    std::error_code ignored;
    fs::remove(temporary, ignored);
  }

  // Runs `work`; after a failure in it the file keeps its last committed state for good.
  template <typename Work>
  void guard(Work work) {
    if (failed) {
      throw WriteError(fmt::format("'{}': an earlier write failed", path), 0, has_steps());
    }
    hdf5::be_quiet();  // threads that write may differ
    try {
      work();
    } catch (const hdf5::Error& error) {
      fail(error.what());
    }
  }
  [[noreturn]] void fail(const std::string& reason) {
    failed = true;
    const int error = file ? write_error(commit_file(file.id())) : 0;
    const std::string kept = has_steps()
                                 ? fmt::format("it stays readable up to step {}", steps_complete)
                                 : "nothing was recorded";
    throw WriteError(fmt::format("cannot write '{}': {}; {}", path,
                                 error != 0 ? std::strerror(error) : reason, kept),
                     error, has_steps());
  }
  // A run that was to be replaced is not this one.
  bool has_steps() const { return temporary.empty() && steps_complete > 0; }
  void flush() {
    hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), "flush the file");
    if (!commit(commit_file(file.id()))) fail("the disk refused a write");
  }
  // Flushes only the run's group: a flush of everything costs some microseconds per dataset.
  void write_steps_complete(int64_t steps, bool is_closed) {
    const hdf5::Handle run = hdf5::open_group(file.id(), group);
    hdf5::write_attribute(run.id(), run_names::kStepsComplete, steps);
    if (hdf5::has_attribute(run.id(), run_names::kStepsChecksum)) {  // earlier versions have none
      hdf5::write_attribute(run.id(), run_names::kStepsChecksum, steps_checksum(steps, is_closed));
    }
    hdf5::check(H5Gflush(run.id()), "flush the run's group");
    if (!commit(commit_file(file.id()))) fail("the disk refused a write");
  }
  void create(const RunDescription& description);
  void publish();
  void open_record();
  void drop_short_rows(int64_t step);
  void reopen(const RunDescription& description);
  void compare(const StepRecord& step) const;
  std::vector<std::vector<uint64_t>> unfinished_sums() const {
    std::vector<std::vector<uint64_t>> sums;
    for (const LaneRecorder& lane : lanes) sums.push_back(lane.unfinished_sums());
    return sums;
  }
};

namespace {

hdf5::Handle open_to_write(const std::string& path, bool create) {
  hdf5::be_quiet();
  errno = 0;
  try {
    const hdf5::Handle access(commit_driver_access(), "set up the file driver");
    if (!create) return hdf5::Handle(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id()), "open it");
    const hdf5::Handle creation(H5Pcreate(H5P_FILE_CREATE), "make a property list");
    hdf5::check(H5Pset_obj_track_times(creation.id(), false), "switch off time stamps");
    return hdf5::Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()),
                        "create it");
  } catch (const hdf5::Error& error) {
    if (errno == EWOULDBLOCK) {  // the driver's lock: by another name of the file
      throw InputError(fmt::format("run file '{}': another program has it open", path),
                       "wait until it ends, or choose another name");
    }
    const std::string hint = write_error_hint(errno);
    throw InputError(
        fmt::format("run file '{}': {}", path, errno != 0 ? std::strerror(errno) : error.what()),
        hint.empty() ? "do the folder and the file exist, and are they writable?" : hint);
  }
}

// HDF5 writes to a file of unknown origin only after a child process has done the same to it
// without touching the disk: the layout of such a file can make libhdf5 crash.
void rehearse_writing(const RunFile& run, const std::string& group) {
  const std::string& path = run.path();
  std::error_code ignored;
  const SandboxLimits limits = limits_of_file(fs::file_size(path, ignored));
  try {
    Sandbox child(limits, [&](const SandboxRead&, const SandboxWrite&) {
      rehearse_commits();
      const hdf5::Handle file = open_to_write(path, false);
      const hdf5::Handle at = hdf5::open_group(file.id(), group);
      for (const std::string& name : run.dataset_paths()) {
        GrowingDataset dataset = GrowingDataset::open(at.id(), name);
        const std::vector<char> row(dataset.row_bytes(), 0);
        for (const int64_t end : {run.steps(), dataset.rows()}) dataset.write(end, row.data());
      }
      hdf5::write_attribute(at.id(), run_names::kStepsComplete, run.steps());
      hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), "flush the file");
    });
    child.finish();
  } catch (const SandboxError& error) {
    if (error.is_of_machine()) {
      throw InputError(fmt::format("run file '{}': trying to write to it in a separate process "
                                   "failed: {}",
                                   path, error.what()),
                       "try again");
    }
    throw InputError(fmt::format("run file '{}' is damaged: writing to it was tried in a separate "
                                 "process and failed: {}",
                                 path, error.what()),
                     "start a new run");
  }
}

// Throws: InputError unless every complete step has its checksum.
void require_whole(const RunFile& run) {
  const RunFile::Proof proof = run.prove();
  if (proof.problems.empty()) return;
  throw InputError(fmt::format("run file '{}' is damaged", run.path()), proof.problems);
}

std::string new_run_id() {
  std::random_device device;
  const uint64_t high = device(), low = device();
  constexpr int kHalf = 32;
  return run_names::hex(high << kHalf | low);
}

}  // namespace

RunFileWriter::RunFileWriter() : impl_(std::make_unique<Impl>()) {}
RunFileWriter::~RunFileWriter() = default;

RunFileWriter::RunFileWriter(std::string path, std::string command_line, bool overwrite)
    : RunFileWriter() {
  impl_->lock = lock_run(path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) {  // existence is unknown
    throw InputError(fmt::format("run file '{}': {}", path, std::strerror(error.value())),
                     "are the folder's permissions right?");
  }
  if (fs::exists(status)) {
    if (!overwrite) {
      throw InputError(fmt::format("run file '{}' exists", path),
                       "choose another name, or continue it with --resume");
    }
    if (!fs::is_regular_file(status)) {
      throw InputError(fmt::format("run file '{}' is not a regular file", path));
    }
    refuse_locked_file(path);
    impl_->replaces = true;
  }
  impl_->temporary = path + ".tmp";
  std::error_code ignored;
  fs::remove(impl_->temporary, ignored);  // of a run that was killed; a link would be followed
  impl_->path = std::move(path);
  impl_->command_line = std::move(command_line);
  impl_->file = open_to_write(impl_->temporary, true);
}

std::unique_ptr<RunFileWriter> RunFileWriter::resume(std::string path, int64_t resume_from,
                                                     std::optional<uint64_t> seed) {
  std::unique_ptr<RunFileWriter> writer(new RunFileWriter());
  Impl& impl = *writer->impl_;
  impl.lock = lock_run(path);
  RunFile& run = impl.before.emplace(path, /*allow_empty=*/true, seed);
  if (resume_from < 0 || resume_from > run.steps()) {
    throw InputError(fmt::format("run file '{}': cannot continue after {} steps, {} are recorded",
                                 path, resume_from, run.steps()));
  }
  require_whole(run);
  if (resume_from > 0) {
    impl.checkpoint = find_checkpoint(path, resume_from, run.identity());
    if (!impl.checkpoint || impl.checkpoint->run.steps_done != resume_from) {
      throw InputError(
          fmt::format("run file '{}': no checkpoint after {} steps next to it", path, resume_from));
    }
  }
  impl.first_seed = run.seeds().front();
  if (seed && *seed != run.seeds().front()) {
    impl.seed = seed;
    impl.group += run_names::seed_group(*seed);
  }
  rehearse_writing(run, impl.group);
  impl.file = open_to_write(path, false);
  impl.steps_complete = run.steps();
  impl.path = std::move(path);
  impl.steps_done = resume_from;
  impl.resumed = true;
  return writer;
}

std::unique_ptr<RunFileWriter> RunFileWriter::add_seed(std::string path, uint64_t seed) {
  std::unique_ptr<RunFileWriter> writer(new RunFileWriter());
  Impl& impl = *writer->impl_;
  impl.lock = lock_run(path);
  {
    const RunFile file(path, true);
    if (std::ranges::count(file.seeds(), seed) > 0) {
      throw InputError(fmt::format("run file '{}': seed {} is recorded", path, seed),
                       "continue it with --resume");
    }
    impl.first_seed = file.seeds().front();
    impl.command_line = file.command_line();
    rehearse_writing(file, impl.group);
  }
  impl.file = open_to_write(path, false);
  impl.path = std::move(path);
  impl.seed = seed;
  impl.group += run_names::seed_group(seed);
  return writer;
}

void RunFileWriter::show_findings(FindingsSoFar findings) {
  impl_->findings = std::move(findings);
}

void RunFileWriter::on_start(const RunDescription& description) {
  Impl& impl = *impl_;
  impl.sites = *description.sites;
  for (const LaneDescription& lane : description.lanes) {
    impl.record.lane_names.push_back(lane.name);
  }
  impl.guard([&] { impl.resumed ? impl.reopen(description) : impl.create(description); });
  const RunOptions& options = *description.options;
  impl.progress.emplace(impl.path, description, impl.first_seed.value_or(options.seed),
                        impl.findings);
  if (impl.resumed) {
    impl.progress->recall(RunFile(impl.path, true, impl.seed), impl.steps_done);
  } else {
    impl.progress->start();
  }
}

void RunFileWriter::Impl::create(const RunDescription& description) {
  // In the file's first commit; an earlier version's files lack it.
  const RunOptions& options = *description.options;
  if (options.seeds > 1 && !hdf5::has_link(file.id(), run_names::kSeeds)) {
    hdf5::create_growing_group(file.id(), run_names::kSeeds, options.seeds - 1,
                               std::to_string(options.seed).size() + 1);
  }
  const hdf5::Handle run =
      seed ? hdf5::create_group(file.id(), group) : hdf5::open_group(file.id(), group);
  const hid_t root = run.id();
  hdf5::write_attribute(root, run_names::kFormat, std::string(run_names::kRunFormat));
  hdf5::write_attribute(root, run_names::kFormatVersion, int64_t{kRunFormatVersion});
  hdf5::write_attribute(root, run_names::kLockstepVersion, std::string(LOCKSTEP_VERSION));
  hdf5::write_attribute(root, run_names::kCommandLine, command_line);
  hdf5::write_attribute(root, run_names::kCreatedUtc, utc_now());
  hdf5::write_attribute(root, run_names::kEnvironment,
                        nlohmann::json(describe_environment()).dump());
  hdf5::write_attribute(root, run_names::kOptions, options_to_json(*description.options));
  hdf5::write_attribute(root, run_names::kData, description.data);
  if (!description.batches_hash.empty()) {
    hdf5::write_attribute(root, run_names::kBatchesHash, description.batches_hash);
  }
  record.run = {run_hash(description), new_run_id()};
  hdf5::write_attribute(root, run_names::kRunHash, record.run.hash);
  hdf5::write_attribute(root, run_names::kRunId, record.run.id);
  if (const RunOptions& o = *description.options; !o.capture_hash.empty()) {
    const auto known = read_verification(o.model, o.capture_hash);
    hdf5::write_attribute(root, run_names::kVerification, known ? to_json(*known) : "");
  }
  hdf5::write_attribute(root, run_names::kStepsComplete, int64_t{0});
  hdf5::write_attribute(root, run_names::kStepsChecksum, steps_checksum(0, false));
  hdf5::write_text(root, run_names::kGraph, to_json(*description.step_graph));
  hdf5::write_text(root, run_names::kProducts, to_json(product_facts(*description.step_graph)));
  if (!description.lines.empty()) {
    hdf5::write_text(root, run_names::kLines, to_json(description.lines));
  }
  if (!description.watched.empty()) {
    hdf5::write_texts(root, run_names::kWatched, description.watched);
  }
  write_sites(root, sites);
  const hdf5::Handle of_lanes = hdf5::create_group(root, run_names::kLanes);
  for (const LaneDescription& lane : description.lanes) {
    lanes.push_back(LaneRecorder::create(of_lanes.id(), lane, static_cast<int64_t>(lanes.size()),
                                         lane_extent(description, lane)));
  }
  // In the commit that makes the run visible: a further seed has its checksum or is not there.
  const uint64_t sum = RunFile::compute_description_checksum(file.id(), seed);
  hdf5::write_attribute(root, run_names::kDescriptionChecksum, run_names::hex(sum));
  flush();
  if (!seed && !replaces) publish();
}

// From here on the name leads to this file. A run that had the name is gone, and with it its
// checkpoints; if the program is stopped in between, no run claims them.
void RunFileWriter::Impl::publish() {
  std::error_code status;
  fs::rename(temporary, path, status);
  if (status) {
    throw hdf5::Error(
        fmt::format("cannot rename '{}' to it: {}", temporary, std::strerror(status.value())));
  }
  temporary.clear();
  remove_checkpoints(path);
}

void RunFileWriter::Impl::reopen(const RunDescription& description) {
  const hdf5::Handle run = hdf5::open_group(file.id(), group);
  const std::vector<std::string> differences = run_differences(*before, description);
  if (!differences.empty()) {
    throw InputError(fmt::format("run file '{}' is of another run", path), differences);
  }
  // The file's, not one computed now: another version may write the same graph as another text.
  record.run = before->identity();
  const size_t sum_count = sites.sites.size() * kHistogramBins;
  const hdf5::Handle of_lanes = hdf5::open_group(run.id(), run_names::kLanes);
  for (size_t i = 0; i < description.lanes.size(); ++i) {
    std::vector<uint64_t> sums(sum_count, 0);
    if (checkpoint) {
      const RecordState& kept = checkpoint->record;
      if (kept.lane_names != record.lane_names || kept.unfinished_sums.at(i).size() != sum_count) {
        throw InputError(fmt::format("the checkpoint next to '{}' has other lanes or sites", path),
                         "remove it to restart from step 0");
      }
      sums = kept.unfinished_sums[i];
    }
    lanes.push_back(LaneRecorder::open(of_lanes.id(), description.lanes[i],
                                       lane_extent(description, description.lanes[i]),
                                       steps_complete, std::move(sums)));
  }
  checkpoint.reset();
  for (const Evaluation& e : before->evaluations(0)) evaluated.push_back(e.steps_done);
  before.reset();
  flush();
}

// Before the first change of a resumed run: until it ends, its last rows may be half written.
void RunFileWriter::Impl::open_record() {
  if (!resumed || record_opened) return;
  record_opened = true;
  write_steps_complete(steps_complete, /*is_closed=*/false);
}

void RunFileWriter::Impl::drop_short_rows(int64_t step) {
  if (!resumed || short_rows_dropped) return;
  short_rows_dropped = true;
  bool is_changed = false;
  for (LaneRecorder& lane : lanes) is_changed = lane.drop_short_row(step) || is_changed;
  if (is_changed) flush();
}

// A recomputed step must have the recorded bits. Steps that were not measured only have losses.
void RunFileWriter::Impl::compare(const StepRecord& step) const {
  const auto fail = [&](size_t lane, const std::string& difference) {
    throw InputError(
        fmt::format("run file '{}': step {}, lane {}{}", path, step.step, record.lane_names[lane],
                    difference),
        "the data, the policy files or the program have changed since; start a new run");
  };
  for (size_t i = 0; i < lanes.size(); ++i) {
    const double loss = lanes[i].recorded_loss(step.step), loss_now = step.lanes.at(i).loss;
    const bool has_loss = step.lanes[i].alive && !(std::isnan(loss) && std::isnan(loss_now));
    if (has_loss && loss != loss_now) {
      fail(i, fmt::format(": recomputed loss {} where {} is recorded", loss_now, loss));
    }
    const std::vector<uint64_t> recorded = lanes[i].recorded_bits_hash(step.step);
    const std::vector<uint64_t> now =
        bits_hash_row(step.lanes.at(i), static_cast<int64_t>(recorded.size()));
    for (size_t s = 0; s < recorded.size(); ++s) {
      if (recorded[s] == now[s]) continue;
      fail(i, fmt::format(", site '{}': recomputed bits_hash {} where {} is recorded",
                          sites.sites[s].label(), run_names::hex(now[s]),
                          run_names::hex(recorded[s])));
    }
  }
}

void RunFileWriter::on_step(const StepRecord& step) {
  Impl& impl = *impl_;
  impl.guard([&] {
    const bool recorded = step.step < impl.steps_complete;
    if (recorded) impl.compare(step);
    if (!recorded) {
      impl.open_record();
      impl.drop_short_rows(step.step);
    }
    for (size_t i = 0; i < impl.lanes.size(); ++i) {
      if (recorded) {
        impl.lanes[i].pass_step(step.step, step.lanes.at(i));
      } else {
        impl.lanes[i].write_step(step.step, step.is_measured, step.lanes.at(i));
      }
    }
    impl.steps_done = step.step + 1;
    if (recorded) return;
    impl.flush();
    impl.write_steps_complete(impl.steps_done, /*is_closed=*/false);
    impl.steps_complete = impl.steps_done;
    if (impl.replaces && !impl.temporary.empty()) impl.publish();
  });
  impl.progress->step(step);
}

void RunFileWriter::on_evaluation(const EvaluationRecord& evaluation) {
  Impl& impl = *impl_;
  impl.guard([&] {
    int64_t row = 0;
    while (row < static_cast<int64_t>(impl.evaluated.size()) &&
           impl.evaluated[static_cast<size_t>(row)] < evaluation.steps_done) {
      ++row;
    }
    const bool recorded = row < static_cast<int64_t>(impl.evaluated.size()) &&
                          impl.evaluated[static_cast<size_t>(row)] == evaluation.steps_done;
    if (!recorded) {
      impl.open_record();
      impl.evaluated.push_back(evaluation.steps_done);
    }
    for (size_t i = 0; i < impl.lanes.size(); ++i) {
      impl.lanes[i].write_evaluation(row, {evaluation.steps_done, evaluation.loss.at(i),
                                           evaluation.accuracy.at(i), evaluation.example_count});
    }
    impl.flush();
  });
}

void RunFileWriter::on_checkpoint(const RunStateView& state) {
  Impl& impl = *impl_;
  impl.guard([&] {
    impl.record.unfinished_sums = impl.unfinished_sums();
    write_checkpoint(impl.path, state, impl.record);
  });
}

void RunFileWriter::on_finish() {
  Impl& impl = *impl_;
  impl.guard([&] {
    // A run stopped while it recomputes does not write the short row: the file already has it.
    if (impl.steps_done == impl.steps_complete) {
      for (LaneRecorder& lane : impl.lanes) lane.write_unfinished_sums(impl.steps_done);
      impl.flush();
      for (LaneRecorder& lane : impl.lanes) lane.write_unfinished_length(impl.steps_done);
      impl.flush();
      impl.write_steps_complete(impl.steps_done, /*is_closed=*/true);
    }
    impl.flush();
    impl.lanes.clear();
    impl.file.close();
  });
  if (impl.progress) impl.progress->finish();
}

}  // namespace lockstep

// Mistakes of users with run files, each with its message.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

bool says(const std::string& message, const std::string& part) {
  CAPTURE(message);
  CAPTURE(part);
  const bool found = message.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

std::string error_of_reading(const std::string& path) {
  return error_of([&] { RunFile file(path); });
}

void set_version(const std::string& path, int64_t version) {
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
  hdf5::write_attribute(file.id(), "format_version", version);
}

}  // namespace

TEST_CASE("files that are not run files") {
  const TemporaryFolder folder;
  says(error_of_reading(folder.file("absent.h5")), "absent.h5");
  says(error_of_reading(folder.path()), "not a regular file");
  std::ofstream(folder.file("text.h5")) << "no HDF5 at all";
  says(error_of_reading(folder.file("text.h5")), "not an HDF5 file");
  {
    const hdf5::Handle other(
        H5Fcreate(folder.file("other.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
        "create");
  }
  says(error_of_reading(folder.file("other.h5")), "not a run file");
}

TEST_CASE("a newer version is refused; the error names both versions") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(2).record(path);
  set_version(path, kRunFormatVersion + 1);
  says(error_of_reading(path),
       fmt::format("format version {}, at most {}", kRunFormatVersion + 1, kRunFormatVersion));
  CHECK_FALSE(error_of([&] { RunFileWriter::resume(path, 0); }).empty());
}

TEST_CASE("a truncated file is refused at any length") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5"), cut = folder.file("cut.h5");
  SyntheticRun(4).record(path);
  const auto size = fs::file_size(path);
  for (const double part : {0.999, 0.9, 0.5, 0.1, 0.01}) {
    fs::copy_file(path, cut, fs::copy_options::overwrite_existing);
    fs::resize_file(cut, static_cast<uintmax_t>(part * static_cast<double>(size)));
    CAPTURE(part);
    CHECK_FALSE(error_of_reading(cut).empty());
  }
}

TEST_CASE("a file without a complete step is refused, unless it may be empty") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(4);
  {
    RunFileWriter writer(path, "", false);
    writer.on_start(run.description);
  }
  says(error_of_reading(path), "no complete step");
  CHECK(RunFile(path, true).steps() == 0);
}

TEST_CASE("unknown lanes give a suggestion, missing steps the range") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(4).record(path);
  const RunFile file(path);
  says(error_of([&] { file.lane_index("fp23"); }), "did you mean 'fp32'?");
  says(error_of([&] { file.step(0, 4); }), "steps 0 to 3");
}

TEST_CASE("an existing file is kept unless it may be overwritten") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  std::ofstream(path) << "precious";
  says(error_of([&] { RunFileWriter(path, "", false); }), "exists");
  CHECK(read_text_file(path) == "precious");
  { RunFileWriter writer(path, "", true); }  // nothing is replaced before on_start
  CHECK(read_text_file(path) == "precious");
  const SyntheticRun run(2);
  {
    RunFileWriter writer(path, "", true);
    run.drive(writer, 0, 2);
  }
  CHECK(RunFile(path).steps() == 2);
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    CHECK(entry.path().extension() != ".tmp");
  }
}

TEST_CASE("a new run does not inherit the checkpoints of an old one") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(60).record(path);
  REQUIRE(read_checkpoint(path, 60).has_value());
  const SyntheticRun run(60);
  RunFileWriter writer(path, "", true);
  writer.on_start(run.description);
  CHECK(RunFile(path).steps() == 60);  // until the new one has a step
  CHECK(read_checkpoint(path, 60).has_value());
  writer.on_step(run.step(0));
  CHECK(RunFile(path).steps() == 1);
  CHECK_FALSE(read_checkpoint(path, 60).has_value());
}

TEST_CASE("a run that ends before its first step leaves the one that it was to replace") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(60).record(path);
  const std::string before = read_text_file(path);
  {
    const SyntheticRun run(60);
    RunFileWriter writer(path, "", true);
    writer.on_start(run.description);
  }
  CHECK(read_text_file(path) == before);
  CHECK(read_checkpoint(path, 60).has_value());
}

TEST_CASE("checkpoints of a run that was replaced are not of the new one") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(60);
  run.record(path);
  for (const char* end : {".state", ".state.1"}) fs::copy_file(path + end, folder.file(end));
  {
    RunFileWriter writer(path, "", true);
    run.drive(writer, 0, 60);
  }
  // As if the program had been killed before it removed them.
  for (const char* end : {".state", ".state.1"}) {
    fs::rename(folder.file(end), path + end);
  }
  const RunFile now(path);
  CHECK(read_checkpoint(path, 60).has_value());
  CHECK_FALSE(read_checkpoint(path, 60, now.identity()).has_value());
}

TEST_CASE("a missing folder, a file that another writer holds") {
  const TemporaryFolder folder;
  says(error_of([&] { RunFileWriter(folder.file("no/run.h5"), "", false); }), "No such file");
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(4);
  RunFileWriter writer(path, "", false);
  writer.on_start(run.description);
  writer.on_step(run.step(0));
  says(error_of([&] { RunFileWriter(path, "", true); }), "another program has it open");
  says(error_of([&] { RunFileWriter::resume(path, 0); }), "another program has it open");
}

TEST_CASE("files and folders without permission give an error") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5"), closed = folder.file("closed");
  SyntheticRun(2).record(path);
  fs::create_directory(closed);
  fs::permissions(folder.path(),
                  fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  fs::permissions(path, fs::perms::none);
  fs::permissions(closed, fs::perms::none);
  // The superuser may read everything, so the files are opened as another user.
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();
  if (user == 0) REQUIRE(::seteuid(kNobody) == 0);
  const std::string read = error_of_reading(path);
  const std::string beyond = error_of_reading(closed + "/run.h5");
  const std::string made = error_of([&] { RunFileWriter(closed + "/run.h5", "", false); });
  const std::string state = error_of([&] { read_checkpoint(closed + "/run.h5", 1); });
  if (user == 0) REQUIRE(::seteuid(user) == 0);
  fs::permissions(closed, fs::perms::owner_all);
  says(read, "cannot be read: Permission denied");
  says(beyond, "Permission denied");
  says(made, "Permission denied");
  says(state, "Permission denied");
}

}  // namespace lockstep::test

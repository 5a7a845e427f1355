// At every write of a growing file, one after the other, the process dies or the disk is full.
// Small B-tree nodes (4 entries) make the index split often and grow to four levels.
#include "src/record/hdf5/commit_driver.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "src/record/hdf5/growing_dataset.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep::test {
namespace {

constexpr int64_t kRows = 150, kWidth = 600;  // 4800 bytes a row: more than a page

std::vector<double> row_of(int64_t row) {
  return std::vector<double>(kWidth, static_cast<double>(row) + 0.5);
}

// Rows, and a counter that is raised after each: the protocol of the run file.
void write_rows(const std::string& path) {
  const hdf5::Handle access(commit_driver_access(), "access");
  const hdf5::Handle creation(H5Pcreate(H5P_FILE_CREATE), "creation");
  constexpr unsigned kHalfNode = 2;
  H5Pset_istore_k(creation.id(), kHalfNode);
  const hdf5::Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()),
                          "create");
  GrowingDataset wide =
      GrowingDataset::create(file.id(), "wide", H5T_NATIVE_DOUBLE, {kWidth}, {.rows_per_chunk = 1});
  GrowingDataset narrow = GrowingDataset::create(file.id(), "narrow", H5T_NATIVE_INT64, {}, {});
  const auto flush = [&] {
    hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), "flush");
    if (!commit(commit_file(file.id()))) throw hdf5::Error("commit");
  };
  hdf5::write_attribute(file.id(), "complete", int64_t{0});
  flush();
  for (int64_t row = 0; row < kRows; ++row) {
    wide.write(row, row_of(row).data());
    narrow.write(row, &row);
    flush();
    hdf5::write_attribute(file.id(), "complete", row + 1);
    flush();
  }
}

// Number of rows that read back as written; -1: no complete first commit; -2: damaged.
int64_t readable_rows(const std::string& path) try {
  hdf5::be_quiet();
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open");
  if (!hdf5::has_attribute(file.id(), "complete")) return -1;
  const int64_t complete = hdf5::int_attribute(file.id(), "complete");
  const GrowingDataset wide = GrowingDataset::open(file.id(), "wide");
  const GrowingDataset narrow = GrowingDataset::open(file.id(), "narrow");
  std::vector<double> row(kWidth);
  for (int64_t i = 0; i < complete; ++i) {
    int64_t number = -1;
    wide.read(i, row.data());
    narrow.read(i, &number);
    if (row != row_of(i) || number != i) return -2;
  }
  return complete;
} catch (const hdf5::Error&) {
  return -2;
}

int64_t writes_of_a_whole_run(const std::string& path) {
  set_write_fault(WriteFault::kNone, 0);
  write_rows(path);
  REQUIRE(readable_rows(path) == kRows);
  return write_count();
}

// Writes that make the file: before its first commit is complete there is nothing to lose.
constexpr int64_t kFirstWrites = 30;

// The write at which a child dies while it does `work`.
template <typename Work>
void die_at(WriteFault fault, int64_t at, Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    set_write_fault(fault, at);
    work();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGKILL);
}

void die_at_every_write(WriteFault fault, int64_t stride) {
  const TemporaryFolder folder;
  const std::string path = folder.file("rows.h5");
  const int64_t total = writes_of_a_whole_run(path);
  REQUIRE(total > 4 * kRows);
  int64_t tried = 0, before = 0;
  for (int64_t at = kFirstWrites; at < total; at += stride) {
    die_at(fault, at, [&] { write_rows(path); });
    const int64_t rows = readable_rows(path);
    CAPTURE(at);
    CHECK(rows >= before);  // a complete row stays readable
    if (rows < before) break;
    before = rows;
    ++tried;
  }
  CHECK(before >= kRows - 1);
  MESSAGE(tried << " of " << total << " writes were the last one");
}

constexpr int64_t kGroups = 40;  // more than a node of HDF5's usual groups holds

// Groups under "seeds", each with an attribute, in one commit each: how a further seed begins.
void write_groups(const std::string& path) {
  const hdf5::Handle access(commit_driver_access(), "access");
  const hdf5::Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()),
                          "create");
  const auto flush = [&] {
    hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), "flush");
    if (!commit(commit_file(file.id()))) throw hdf5::Error("commit");
  };
  const hdf5::Handle seeds = hdf5::create_growing_group(file.id(), "seeds", kGroups, 20);
  flush();
  for (int64_t i = 0; i < kGroups; ++i) {
    const hdf5::Handle group =
        hdf5::create_group(seeds.id(), std::to_string(i * 7919 % 1000003 + 18446744073709));
    hdf5::write_attribute(group.id(), "number", i);
    flush();
  }
}

// Groups that are whole; -1: no complete first commit; -2: damaged.
int64_t readable_groups(const std::string& path) try {
  hdf5::be_quiet();
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open");
  if (!hdf5::has_link(file.id(), "seeds")) return -1;
  const hdf5::Handle seeds = hdf5::open_group(file.id(), "seeds");
  int64_t sum = 0, count = 0;
  for (const std::string& name : hdf5::link_names(seeds.id())) {
    sum += hdf5::int_attribute(hdf5::open_group(seeds.id(), name).id(), "number");
    ++count;
  }
  return sum == count * (count - 1) / 2 ? count : -2;
} catch (const hdf5::Error&) {
  return -2;
}

void die_while_groups_are_added(WriteFault fault) {
  const TemporaryFolder folder;
  const std::string path = folder.file("groups.h5");
  set_write_fault(WriteFault::kNone, 0);
  write_groups(path);
  REQUIRE(readable_groups(path) == kGroups);
  const int64_t total = write_count();
  int64_t before = 0;
  for (int64_t at = kFirstWrites; at < total; ++at) {
    die_at(fault, at, [&] { write_groups(path); });
    const int64_t groups = readable_groups(path);
    CAPTURE(at);
    CHECK(groups >= before);
    before = std::max(before, groups);
  }
  CHECK(before >= kGroups - 1);
}

}  // namespace

TEST_CASE("a kill while a group is added leaves every committed group readable") {
  die_while_groups_are_added(WriteFault::kKill);
  die_while_groups_are_added(WriteFault::kTear);
}

TEST_CASE("a kill before any write leaves every committed row readable") {
  die_at_every_write(WriteFault::kKill, 7);
}
TEST_CASE("a kill inside any write leaves every committed row readable") {
  die_at_every_write(WriteFault::kTear, 7);
}

TEST_CASE("a disk that is full at any write leaves every committed row readable") {
  const TemporaryFolder folder;
  const std::string path = folder.file("rows.h5");
  const int64_t total = writes_of_a_whole_run(path);
  int64_t before = 0;
  hdf5::be_quiet();
  for (int64_t at = kFirstWrites; at < total; at += 3) {
    set_write_fault(WriteFault::kFull, at);
    CHECK_THROWS_AS(write_rows(path), hdf5::Error);
    set_write_fault(WriteFault::kNone, 0);
    const int64_t rows = readable_rows(path);
    CAPTURE(at);
    REQUIRE(rows >= before);
    before = rows;
  }
  CHECK(before >= kRows - 1);
}

TEST_SUITE("slow") {
  TEST_CASE("a kill before or inside every single write leaves every committed row readable") {
    die_at_every_write(WriteFault::kKill, 1);
    die_at_every_write(WriteFault::kTear, 1);
  }
}

TEST_CASE("a row that is promised but missing is reported as damage") {
  const TemporaryFolder folder;
  const std::string path = folder.file("rows.h5");
  writes_of_a_whole_run(path);
  const hdf5::Handle access(commit_driver_access(), "access");
  {
    const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id()), "open");
    hdf5::write_attribute(file.id(), "complete", kRows + 1);  // promises a row that is missing
    hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), "flush");
    REQUIRE(commit(commit_file(file.id())));
  }
  CHECK(readable_rows(path) == -2);
}

TEST_CASE("one writer at a time") {
  const TemporaryFolder folder;
  const std::string path = folder.file("rows.h5");
  const hdf5::Handle access(commit_driver_access(), "access");
  const hdf5::Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()),
                          "create");
  const pid_t child = ::fork();
  if (child == 0) {
    hdf5::be_quiet();
    const hid_t second = H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id());
    ::_exit(second < 0 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace lockstep::test

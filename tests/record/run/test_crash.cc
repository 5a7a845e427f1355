// Kills and full disks during whole runs: SIGKILL at random moments, a small tmpfs, a fault at any
// write around the steps where HDF5's chunk index changes its shape. Each time the file reads, and
// continuing gives the bits of a run that was never stopped.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>

#include "src/core/random.h"
#include "src/record/hdf5/commit_driver.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 140;

// How a child ended.
enum class End { kKilled, kDone, kRefused };  // refused: another program held the lock
constexpr int kRefusedCode = 2;

// Runs `work` in a child. kill_after_us: -1: it is not killed from here.
template <typename Work>
End end_of_child(Work work, int64_t kill_after_us) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (const std::exception& error) {  // any further up, it would remove the parent's folder
      fmt::print(stderr, "in a child: {}\n", error.what());
      const std::string_view text = error.what();
      ::_exit(text.find("another program is writing it") != text.npos ? kRefusedCode : 1);
    }
    ::_exit(0);
  }
  if (kill_after_us >= 0) {
    ::usleep(static_cast<useconds_t>(kill_after_us));
    ::kill(child, SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) return End::kKilled;
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kRefusedCode) return End::kRefused;
  REQUIRE(WEXITSTATUS(status) == 0);
  return End::kDone;
}

void kill_at_random_moments(int count) {
  const TemporaryFolder folder;
  const SyntheticRun run(kSteps);
  const std::string whole = folder.file("whole.h5"), path = folder.file("run.h5");
  run.record(whole);
  const RandomStream random(1, RandomPurpose::kTest);
  // Moments are drawn from [0, window), which follows the machine's speed: longer after a kill that
  // came too early, shorter after one that came too late.
  constexpr double kLonger = 1.1, kShorter = 0.95;
  double window_us = 4e5;
  int inside = 0, early = 0, late = 0;  // kills during the run, before its file, after its end
  int refused = 0;  // runs that met a lock, which may outlast the killed program
  for (uint64_t i = 0; inside < count; ++i) {
    CAPTURE(window_us);
    CAPTURE(inside);
    CAPTURE(early);
    CAPTURE(late);
    REQUIRE(i < static_cast<uint64_t>(20 * count));
    const int64_t wait_us = static_cast<int64_t>(random.uniform(i) * window_us);
    fs::remove(path);
    const End end = end_of_child([&] { run.record(path); }, wait_us);
    if (end == End::kRefused) {
      REQUIRE(++refused <= std::max(1, count / 10));
      continue;
    }
    if (!fs::exists(path)) {
      ++early;
      window_us *= kLonger;
      continue;
    }
    CAPTURE(wait_us);
    REQUIRE(problem_of(path, run, 0) == "");
    if (end == End::kDone || RunFile(path, true).steps() == kSteps) {
      ++late;
      window_us *= kShorter;
      continue;
    }
    ++inside;
    run.resume(path);
    REQUIRE(differing_datasets(whole, path) == std::vector<std::string>{});
  }
  CHECK(inside == count);
  if (refused > 0) MESSAGE(refused << " runs were refused and begun again");
}

// A fault at every `stride`-th write of the steps [from, to), on a copy of a run of `from` steps.
// The first is in the middle of a stride.
void fault_in_steps(int64_t from, int64_t to, WriteFault fault, int64_t stride) {
  const TemporaryFolder folder;
  SyntheticRun run(to);
  run.options.checkpoint_every = from;
  const std::string whole = folder.file("whole.h5"), begun = folder.file("begun.h5");
  const std::string path = folder.file("run.h5");
  run.record(whole);
  {
    RunFileWriter writer(begun, "", false);
    run.drive(writer, 0, from);
  }
  const auto go_on = [&](WriteFault kind, int64_t at) {
    fs::copy_file(begun, path, fs::copy_options::overwrite_existing);
    fs::copy_file(begun + ".state", path + ".state", fs::copy_options::overwrite_existing);
    fs::remove(path + ".state.1");
    set_write_fault(kind, at);
    run.resume(path);
  };
  go_on(WriteFault::kNone, 0);
  const int64_t total = write_count();
  REQUIRE(total > 50 * (to - from));
  REQUIRE(total > 2 * stride);
  for (int64_t at = stride / 2; at < total; at += stride) {
    CAPTURE(at);
    if (fault == WriteFault::kFull) {
      CHECK_THROWS_AS(go_on(fault, at), WriteError);
      set_write_fault(WriteFault::kNone, 0);
    } else {
      REQUIRE(end_of_child([&] { go_on(fault, at); }, -1) == End::kKilled);
    }
    REQUIRE(problem_of(path, run, from) == "");
    run.resume(path);
    const std::string differing =
        fmt::format("{}", fmt::join(differing_datasets(whole, path), " "));
    REQUIRE(differing == "");
  }
}

// The chunk index has 64 entries per node: step 64 splits the first leaf, step 121 the second.
void fault_at_splits(int64_t stride) {
  for (const WriteFault fault : {WriteFault::kKill, WriteFault::kTear, WriteFault::kFull}) {
    fault_in_steps(62, 66, fault, stride);
    fault_in_steps(119, 124, fault, stride);
  }
}

// A fault at every `stride`-th write and at each of the last 16, which change what is in the file,
// while a further seed begins: the seed has its whole description or is not there.
void fault_while_seed_begins(int64_t stride) {
  const TemporaryFolder folder;
  SyntheticRun first(4), second(4);
  first.options.seeds = second.options.seeds = 2;
  second.options.seed = first.options.seed + 1;
  const std::string whole = folder.file("whole.h5"), path = folder.file("run.h5");
  first.record(whole);
  const std::string one = folder.file("one.h5");
  fs::copy_file(whole, one);
  const auto add = [&](const std::string& to) {
    return RunFileWriter::add_seed(to, second.options.seed);
  };
  set_write_fault(WriteFault::kNone, 0);
  const auto writer = add(whole);
  writer->on_start(second.description);
  const int64_t total = write_count();
  REQUIRE(total > 10);
  constexpr int64_t kLast = 16;
  int begun = 0;
  for (const WriteFault fault : {WriteFault::kKill, WriteFault::kTear, WriteFault::kFull}) {
    for (int64_t at = 0; at < total; at += std::clamp<int64_t>(total - kLast - at, 1, stride)) {
      CAPTURE(at);
      fs::copy_file(one, path, fs::copy_options::overwrite_existing);
      const auto add_with_fault = [&] {
        set_write_fault(fault, at);
        add(path)->on_start(second.description);
      };
      if (fault == WriteFault::kFull) {
        CHECK_THROWS_AS(add_with_fault(), WriteError);
        set_write_fault(WriteFault::kNone, 0);
      } else {
        REQUIRE(end_of_child(add_with_fault, -1) == End::kKilled);
      }
      REQUIRE(problem_of(path, first, 4) == "");
      const bool has_begun = RunFile(path).seeds().size() == 2;
      begun += has_begun ? 1 : 0;
      if (has_begun) {
        RunFileWriter::resume(path, 0, second.options.seed)->on_start(second.description);
      } else {
        add(path)->on_start(second.description);
      }
      REQUIRE(RunFile(path, true, second.options.seed).steps() == 0);
      REQUIRE(problem_of(path, first, 4) == "");
    }
  }
  CHECK(begun < kLast);  // the name comes last
}

void fill_small_disks(int count) {
  const TemporaryFolder folder;
  const std::string disk = folder.file("disk");
  fs::create_directory(disk);
  const SyntheticRun run(kSteps);
  const std::string whole = folder.file("whole.h5");
  run.record(whole);
  const uint64_t needed = fs::file_size(whole);
  const RandomStream random(2, RandomPurpose::kTest);
  int full = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t bytes = static_cast<uint64_t>(
        static_cast<double>(needed) * (0.1 + 0.9 * random.uniform(static_cast<uint64_t>(i))));
    CAPTURE(bytes);
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, fmt::format("size={}", bytes).c_str()) != 0) {
      MESSAGE("SKIPPED: " << count - i << " small disks, mounting a tmpfs is not permitted here");
      return;
    }
    const std::string path = disk + "/run.h5", copy = folder.file("copy.h5");
    const auto work = [&] {
      try {
        run.record(path);
      } catch (const WriteError&) {
        ::_exit(H5close() < 0 ? 4 : 3);  // with HDF5's own clean-up, as a normal exit runs it
      }
    };
    const pid_t child = ::fork();
    if (child == 0) {
      work();
      ::_exit(0);
    }
    int status = 0;
    const bool waited = ::waitpid(child, &status, 0) == child;
    for (const char* ending : {"", ".state", ".state.1"}) {
      fs::remove(copy + ending);
      if (fs::exists(path + ending)) fs::copy_file(path + ending, copy + ending);
    }
    const bool temporary_left = fs::exists(path + ".tmp") || fs::exists(path + ".state.tmp");
    ::umount(disk.c_str());
    REQUIRE(waited);
    REQUIRE(WIFEXITED(status));
    CHECK((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3));
    if (WEXITSTATUS(status) == 3) ++full;
    CHECK_FALSE(temporary_left);
    if (!fs::exists(copy)) continue;  // too small for the empty file
    REQUIRE(problem_of(copy, run, 0) == "");
    run.resume(copy);
    REQUIRE(differing_datasets(whole, copy) == std::vector<std::string>{});
  }
  CHECK(full > count / 2);
}

}  // namespace

TEST_CASE("a kill at a random moment") {
  kill_at_random_moments(4);
}
TEST_CASE("a fault around the splits of the chunk index") {
  fault_at_splits(333);
}
TEST_CASE("a fault while a further seed begins") {
  fault_while_seed_begins(97);
}
TEST_CASE("a disk that fills up") {
  fill_small_disks(4);
}

TEST_CASE("a write error names the file and the step up to which it reads") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(4);
  RunFileWriter writer(path, "", false);
  writer.on_start(run.description);
  writer.on_step(run.step(0));
  set_write_fault(WriteFault::kFull, 0);
  std::string message;
  try {
    writer.on_step(run.step(1));
  } catch (const WriteError& error) {
    message = error.what();
  }
  set_write_fault(WriteFault::kNone, 0);
  CHECK(message.find("run.h5': No space left on device") != std::string::npos);
  CHECK(message.find("readable up to step 1") != std::string::npos);
  CHECK_THROWS_AS(writer.on_step(run.step(1)), WriteError);  // the failure is permanent
  CHECK(problem_of(path, run, 1) == "");
}

TEST_SUITE("slow") {
  TEST_CASE("kills at 50 random moments") {
    kill_at_random_moments(50);
  }
  TEST_CASE("a fault at every 97th write around the splits") {
    fault_at_splits(97);
  }
  TEST_CASE("a fault at every 7th write while a further seed begins") {
    fault_while_seed_begins(7);
  }
  TEST_CASE("30 small disks") {
    fill_small_disks(30);
  }
}

}  // namespace lockstep::test

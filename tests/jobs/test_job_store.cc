// What decides a job's hash, and which files count as its result.
#include "src/jobs/job_store.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "src/record/run/run_writer.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/small_runs.h"

namespace lockstep::test {
namespace {

using testing::error_of;
using testing::TemporaryFolder;
namespace fs = std::filesystem;

void record_to(const std::string& path, int64_t steps) {
  LockstepRun run(small_run({"fp32", "pure-fp16"}, steps));
  RunFileWriter writer(path, "lockstep replay", true);
  run.add_observer(&writer);
  const std::atomic<bool> stop{false};
  REQUIRE(run.run(stop));
}

}  // namespace

TEST_CASE("a job's hash: what decides its numbers, not where its capture is") {
  RunOptions options = small_run({"fp32", "pure-fp16"}, 2);
  options.capture_hash = "aa";
  const std::string hash = make_job("a", options).hash;
  CHECK(hash.size() == 16);
  CHECK(make_job("b", options).hash == hash);
  const auto changed = [&](auto change) {
    RunOptions other = options;
    change(other);
    return make_job("a", other).hash;
  };
  CHECK(changed([](RunOptions& o) { o.model = "elsewhere.h5"; }) == hash);
  CHECK(changed([](RunOptions& o) { o.capture_hash = "bb"; }) != hash);
  CHECK(changed([](RunOptions& o) { o.lanes = {"fp32", "pure-bf16"}; }) != hash);
  CHECK(changed([](RunOptions& o) { o.nudge = 1; }) != hash);
  const TemporaryFolder folder;
  const std::string policy = folder.file("own.toml");
  const auto hash_with = [&](const char* text) {
    std::ofstream(policy) << text;
    return changed([&](RunOptions& o) { o.lanes = {"fp32", policy}; });
  };
  CHECK(hash_with("extends = \"pure-fp16\"\n") != hash_with("extends = \"pure-bf16\"\n"));
}

TEST_CASE("a result counts if it is whole, of this capture, and undamaged") {
  const TemporaryFolder folder;
  const JobStore store(folder.file("out.parts"));
  const Job job = make_job("a", small_run({"fp32", "pure-fp16"}, 2));
  CHECK_FALSE(store.has(job));
  record_to(store.path_of(job), 2);
  CHECK(store.has(job));
  Job other = job;
  other.options.capture_hash = "aa";
  CHECK_FALSE(store.has(other));
  fs::resize_file(store.path_of(job), fs::file_size(store.path_of(job)) / 2);
  CHECK_FALSE(store.has(job));
  store.forget(job);
  CHECK(fs::is_empty(store.folder()));
}

TEST_CASE("a folder with anything else in it is left alone") {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.parts");
  {
    const JobStore store(path);
    std::ofstream(path + "/0123456789abcdef.h5") << "left by a kill";
    std::ofstream(path + "/0123456789abcdef.h5.lock") << "";
  }
  CHECK(fs::exists(path + "/0123456789abcdef.h5"));
  JobStore(path).clear();
  CHECK_FALSE(fs::exists(path));
  fs::create_directory(path);
  std::ofstream(path + "/thesis.h5") << "mine";
  const std::string said = error_of([&] { JobStore store(path); });
  CHECK(said.find("holds thesis.h5") != std::string::npos);
  CHECK(fs::exists(path + "/thesis.h5"));
}

}  // namespace lockstep::test

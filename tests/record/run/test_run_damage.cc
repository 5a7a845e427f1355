// Run files and checkpoints that chance or an enemy has changed: chance damage never goes
// unnoticed, and extents, ids and types are refused before anything relies on them.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <hdf5.h>

#include <filesystem>
#include <fstream>

#include "src/core/random.h"
#include "src/core/text_file.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/run_checksum.h"
#include "src/record/run/run_file_names.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// What is found to be wrong with the file; "" if nothing is.
std::string damage_of(const std::string& path) {
  return error_of([&] {
    const RunFile::Proof proof = RunFile(path, true).prove();
    if (!proof.problems.empty()) throw InputError(path, proof.problems);
  });
}

// Changes the file as someone does who passes it off as one without checksums.
void edit(const std::string& path, const std::function<void(hid_t file)>& change) {
  {
    const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
    hdf5::check(H5Adelete(file.id(), run_names::kDescriptionChecksum), "remove the checksum");
    hdf5::write_attribute(file.id(), run_names::kFormatVersion, run_names::kSealedVersion - 1);
    change(file.id());
  }
}

template <typename T>
void write_column_again(hid_t file, const std::string& name, const std::vector<T>& values) {
  hdf5::check(H5Ldelete(file, name.c_str(), H5P_DEFAULT), "remove " + name);
  hdf5::write_column(file, name, values);
}

void write_texts_again(hid_t file, const std::string& name, const std::vector<std::string>& texts) {
  hdf5::check(H5Ldelete(file, name.c_str(), H5P_DEFAULT), "remove " + name);
  hdf5::write_texts(file, name, texts);
}

}  // namespace

TEST_CASE("a whole run is proven, every row of it") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(60);
  run.record(path);
  const RunFile::Proof proof = RunFile(path).prove();
  CHECK(proof.problems.empty());
  CHECK(RunFile(path).has_checksums());
  // Per lane: 60 steps twice, 6 evaluations and so on; at least the steps.
  CHECK(proof.rows > 2 * 2 * 60);
}

TEST_CASE("zeros in any page are noticed, unless they change nothing that is read") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5"), changed = folder.file("changed.h5");
  SyntheticRun run(60);
  run.record(path);
  const std::string bytes = read_text_file(path);
  constexpr size_t kPage = 4096;
  size_t noticed = 0, harmless = 0;
#if defined(__SANITIZE_ADDRESS__)
  constexpr size_t kEvery = 16;  // a child process of such a program takes 70 ms
#else
  constexpr size_t kEvery = 2;
#endif
  for (size_t at = 0; at < bytes.size(); at += kEvery * kPage) {
    std::string zeroed = bytes;
    zeroed.replace(at, std::min(kPage, bytes.size() - at), std::min(kPage, bytes.size() - at), 0);
    if (zeroed == bytes) continue;
    write_bytes(changed, zeroed);
    if (!damage_of(changed).empty()) {
      ++noticed;
      continue;
    }
    CAPTURE(at);
    ++harmless;
    const std::vector<std::string> differing = differing_datasets(path, changed);
    CAPTURE(differing.size());
    CAPTURE(differing.empty() ? "" : differing.front());
    CHECK(differing.empty());
  }
  CHECK(noticed > 20 / kEvery);
  CHECK(harmless < noticed);
}

TEST_CASE("a changed byte of a row is noticed, and resuming is refused") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(60);
  {
    RunFileWriter writer(path, "", false);
    run.drive(writer, 0, 40);
  }
  {
    const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
    const hdf5::Handle seconds(H5Dopen2(file.id(), "lanes/fp32/seconds", H5P_DEFAULT), "open");
    std::vector<double> values(40);
    hdf5::read_array(file.id(), "lanes/fp32/seconds", H5T_NATIVE_DOUBLE, values.data());
    values[17] += 1;
    hdf5::check(
        H5Dwrite(seconds.id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
        "write");
  }
  const std::string why = "lanes/fp32/seconds: step 17: the checksum does not fit";
  CHECK(damage_of(path).find(why) != std::string::npos);
  CHECK(error_of([&] { RunFileWriter::resume(path, 40); }).find(why) != std::string::npos);
  // Readers refuse the row, and read the steps before it if asked to.
  const RunFile refusing(path);
  CHECK(error_of([&] { refusing.step(0, 17); }).find(why) != std::string::npos);
  CHECK(error_of([&] { refusing.course(0); }).find("--damaged") != std::string::npos);
  CHECK(error_of([&] { refusing.step(0, 16); }) == "");
  const RunFile whole = RunFile::read_whole_steps(path, std::nullopt);
  CHECK(whole.damage().find(why) != std::string::npos);
  CHECK(whole.steps() == 17);
  CHECK(whole.course(0).size() == 17);
}

TEST_CASE("any changed byte of a checkpoint is noticed") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5"), state = path + ".state";
  SyntheticRun(60).record(path);
  REQUIRE(read_checkpoint(path, 60).has_value());
  const std::string bytes = read_text_file(state);
  const RandomStream random(3, RandomPurpose::kTest);
  int refused = 0, unread = 0;
  constexpr int kCases = 300;
  for (uint64_t i = 0; i < kCases; ++i) {
    const auto at = static_cast<size_t>(random.uniform(i) * static_cast<double>(bytes.size()));
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    write_bytes(state, changed);
    CAPTURE(at);
    if (error_of([&] { read_checkpoint(path, 60); }).empty()) {
      ++unread;
      CHECK(at >= 64);  // the rest of the block has no meaning
      CHECK(at < 4096);
    } else {
      ++refused;
    }
  }
  CHECK(refused + unread == kCases);
  CHECK(unread < kCases / 5);  // a checkpoint of 40 kB
}

TEST_CASE("a run file is refused for what it claims") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(4).record(path);
  struct Lie {
    std::string said;
    std::function<void(hid_t)> change;
  };
  const std::vector<Lie> lies = {
      {"id",
       [](hid_t f) {
         write_column_again<int32_t>(f, "sites/id", {0, 5, 2});
       }},
      {"feeds",
       [](hid_t f) {
         write_texts_again(f, "sites/feeds", {"[]", "[7]", "[]"});
       }},
      {"feeds",
       [](hid_t f) {
         write_texts_again(f, "sites/feeds", {"[]", "[-1]", "[]"});
       }},
      {"feeds itself",
       [](hid_t f) {
         write_texts_again(f, "sites/feeds", {"[]", "[1]", "[]"});
       }},
      {"feeds itself",
       [](hid_t f) {
         write_texts_again(f, "sites/feeds", {"[0]", "[]", "[]"});
       }},
      {"feeds",
       [](hid_t f) {
         write_texts_again(f, "sites/feeds", {"[]", "[2]", "[]"});
       }},
      {"feeds",
       [](hid_t f) {
         write_texts_again(f, "sites/feeds", {"[]", "[1e99]", "[]"});
       }},
      {"shape",
       [](hid_t f) {
         write_texts_again(f, "sites/shape", {"[-2]", "[]", "[]"});
       }},
      {"shape",
       [](hid_t f) {
         write_texts_again(f, "sites/shape", {"[2000000000,2000000000]", "[]", "[]"});
       }},
      {"layer",
       [](hid_t f) {
         write_texts_again(f, "sites/layer", {"a\x1b[2J", "b", "c"});
       }},
      {"role",
       [](hid_t f) {
         write_texts_again(f, "sites/role", {"king", "weight", "weight"});
       }},
      {"rows",
       [](hid_t f) {
         write_texts_again(f, "sites/op", {"a", "b"});
       }},
      {"steps are complete",
       [](hid_t f) { hdf5::write_attribute(f, "steps_complete", int64_t{1} << 40); }},
      {"steps are complete",
       [](hid_t f) { hdf5::write_attribute(f, "steps_complete", int64_t{-3}); }},
      {"index",
       [](hid_t f) {
         const hdf5::Handle lane = hdf5::open_group(f, "lanes/fp32");
         hdf5::write_attribute(lane.id(), "index", int64_t{1} << 33);
       }},
      {"died_of",
       [](hid_t f) {
         const hdf5::Handle lane = hdf5::open_group(f, "lanes/fp32");
         hdf5::write_attribute(lane.id(), "died_of", int64_t{77});
       }},
      {"reference",
       [](hid_t f) {
         const hdf5::Handle lane = hdf5::open_group(f, "lanes/fp32");
         hdf5::write_attribute(lane.id(), "is_reference", int64_t{0});
       }},
      {"options",
       [](hid_t f) { hdf5::write_attribute(f, "options", std::string("{\"model\":3}")); }},
      {"options", [](hid_t f) { hdf5::write_attribute(f, "options", std::string("[1,2")); }},
      {"must have rows of",
       [](hid_t f) {
         write_column_again<double>(f, "lanes/fp32/bits_hash", {1, 2, 3, 4});
       }},
      {"fit a file of this size",
       [](hid_t f) {
         const hdf5::Handle loss(H5Dopen2(f, "lanes/fp32/loss", H5P_DEFAULT), "open");
         const hsize_t rows = hsize_t{1} << 50;
         hdf5::check(H5Dset_extent(loss.id(), &rows), "grow");
       }},
      {"4 steps are complete",
       [](hid_t f) {
         const hdf5::Handle loss(H5Dopen2(f, "lanes/fp32/loss", H5P_DEFAULT), "open");
         const hsize_t rows = 2;
         hdf5::check(H5Dset_extent(loss.id(), &rows), "shrink");
       }},
      {"is missing",
       [](hid_t f) { hdf5::check(H5Ldelete(f, "lanes/fp32/loss", H5P_DEFAULT), "remove"); }},
      {"hard link",
       [](hid_t f) {
         hdf5::check(H5Lcreate_external("/etc/passwd", "/", f, "sites/x", H5P_DEFAULT, H5P_DEFAULT),
                     "link");
       }},
  };
  for (const Lie& lie : lies) {
    const std::string changed = folder.file("changed.h5");
    fs::copy_file(path, changed, fs::copy_options::overwrite_existing);
    edit(changed, lie.change);
    const std::string error = error_of([&] { RunFile file(changed); });
    CAPTURE(lie.said);
    CAPTURE(error);
    CHECK(error.find(lie.said) != std::string::npos);
    CHECK(error.find("'" + changed + "'") != std::string::npos);
  }
  fs::copy_file(path, folder.file("same.h5"));
  edit(folder.file("same.h5"), [](hid_t) {});
  CHECK(RunFile(folder.file("same.h5")).steps() == 4);
}

TEST_CASE("policies with any line ends, and names that turn the writing direction, are read back") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun run(2);
  run.description.lanes[1].policy.text = "name = 'x'\r\n# \x1b[2J\r\n";
  run.description.data = "csv:a\xe2\x80\x8e.csv";
  run.record(path);
  const RunFile file(path);
  CHECK(file.lanes()[1].policy_text == run.description.lanes[1].policy.text);
  CHECK(file.data() == run.description.data);
}

TEST_CASE("a description that was changed is noticed") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(4).record(path);
  {
    const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
    const hdf5::Handle lane = hdf5::open_group(file.id(), "lanes/fp32");
    hdf5::write_attribute(lane.id(), "target", std::string("hopper"));
  }
  CHECK(error_of([&] {
          RunFile file(path);
        }).find("the checksum of its description does not fit") != std::string::npos);
}

TEST_CASE("rows that were never written are not made up") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(4).record(path);
  edit(path, [](hid_t f) {
    const hdf5::Handle counts(H5Dopen2(f, "lanes/fp32/counts/nan", H5P_DEFAULT), "open");
    const hdf5::Handle space(H5Dget_space(counts.id()), "read");
    hsize_t rows[2] = {};
    H5Sget_simple_extent_dims(space.id(), rows, nullptr);
    const hsize_t none[2] = {0, rows[1]};
    hdf5::check(H5Dset_extent(counts.id(), none), "shrink");
    hdf5::check(H5Dset_extent(counts.id(), rows), "grow");
  });
  const RunFile file(path);
  CHECK(error_of([&] { file.step(0, 1); }).find("was never written") != std::string::npos);
}

TEST_CASE("one writer at a time; a reader's question does not take the lock") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  CHECK_FALSE(is_being_written(path));
  {
    const RunLock lock(path);
    CHECK(is_being_written(path));
    CHECK(error_of([&] { RunLock other(path); }).find("another program is writing it") !=
          std::string::npos);
  }
  CHECK_FALSE(is_being_written(path));
  CHECK_FALSE(fs::exists(path + ".lock"));
  {
    const auto own = lock_run(path);
    CHECK_FALSE(is_being_written(path));  // its own program finds it whole, or damaged
  }
  // A lock file that a killed program left is no lock.
  std::ofstream(path + ".lock") << "";
  const RunLock lock(path);
}

TEST_CASE("a lock that ends within a second is waited for") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  auto held = std::make_unique<RunLock>(path);
  std::thread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    held.reset();
  });
  CHECK(error_of([&] { RunLock other(path); }) == "");
  ending.join();
}

}  // namespace lockstep::test

// Ten thousand files with changed bytes, and thousands of files made wrong on purpose. Whatever a
// capture file holds, `lockstep verify` ends in time, with a result or with an error that says what
// is wrong and where. Each case follows from its number alone.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <new>

#include "analysis/faithful/gates.h"
#include "src/capture/captured_loop.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/hdf5/file_block.h"
#include "tests/record/capture/capture_file.h"
#include "tests/record/capture/damage.h"
#include "tests/record/capture/sandbox_text.h"
#include "tests/record/capture/seed_graphs.h"
#include "tests/support/folders.h"
#include "tests/support/temporary_folder.h"

#if defined(__SANITIZE_ADDRESS__)
// libhdf5 allocates as much as a damaged file says, and copes with a failed allocation.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
// libhdf5's copies within one buffer are not checked; the end of the process shows their effect on
// it.
extern "C" const char* __asan_default_suppressions() {
  return "interceptor_via_lib:libhdf5";
}
#endif

namespace lockstep::testing {
namespace {

constexpr int kRawCases = 10'000, kSchemaCases = 1200, kGraphCases = 1200, kOddCases = 1000,
              kHdf5Cases = 400, kByteCases = 800;

enum class End { kAccepted, kRefused, kFault };
struct Verdict {
  End end = End::kFault;
  std::string message;
};

// Reads a file like `lockstep verify` and the beginning of `lockstep replay`.
void use_capture(const std::string& path) {
  const Capture capture = read_capture(path, CaptureUse::kVerify);
  verify_capture(capture);
  make_captured_loop(capture, static_cast<int64_t>(capture.steps.size()));
}

// In a separate process, so that a crash or a hang is reported as one.
Verdict try_file(const std::string& path) {
  SandboxLimits limits;
  limits.seconds = 60;
  limits.clock_seconds = 1200;
  limits.memory_bytes = uint64_t{8} << 30;
  try {
    const std::string said = sandbox_text(limits, [&](const SandboxWrite& write) {
      set_thread_count(1);
      try {
        use_capture(path);
        write("A");
      } catch (const InputError& error) {
        write("R" + std::string(error.what()));
      } catch (const std::exception& error) {
        write("F" + std::string(error.what()));
      }
    });
    if (said == "A") return {End::kAccepted, ""};
    return {said.starts_with('R') ? End::kRefused : End::kFault,
            said.substr(std::min<size_t>(1, said.size()))};
  } catch (const std::runtime_error& error) {
    return {End::kFault, error.what()};
  }
}

// Printable UTF-8 in lines of bounded length that names the file or a node of its graph. A reading
// process that ends with an exit code of its own has a fault of ours, or one that a sanitizer
// found; signals and limits are libhdf5's.
bool says_what_is_wrong(const std::string& message, const std::string& path) {
  constexpr size_t kMost = 100'000;
  std::string lines;
  for (const std::string& line : split(message, '\n')) lines += printable(line) + "\n";
  lines.pop_back();
  const bool names = message.find(path) != std::string::npos ||
                     message.find("node '") != std::string::npos ||
                     message.find("parameter '") != std::string::npos;
  const bool is_ours = message.find("ended with exit code") != std::string::npos;
  return names && !is_ours && lines == message && message.size() < kMost;
}

struct Tally {
  std::map<End, int> ends;
  // False, with a failure reported, if no file may end like this.
  bool count(const Verdict& verdict, const std::string& path, const std::string& what) {
    ++ends[verdict.end];
    if (std::getenv("LOCKSTEP_FUZZ_VERBOSE") != nullptr) {
      fmt::print("{} {}: {}\n", static_cast<int>(verdict.end), what,
                 verdict.message.substr(0, 400));
      std::fflush(stdout);
    }
    const bool fine = verdict.end == End::kAccepted ||
                      (verdict.end == End::kRefused && says_what_is_wrong(verdict.message, path));
    if (!fine) FAIL_CHECK(what << ": " << verdict.message);
    return fine;
  }
};

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// LOCKSTEP_FUZZ_SHARE=10: one case of every ten; LOCKSTEP_SWEEP_SLICE says which.
bool is_taken(int number) {
  const int share = std::max(1, number_in("LOCKSTEP_FUZZ_SHARE", 1));
  return number % share == number_in("LOCKSTEP_SWEEP_SLICE", 0) % share;
}

int count_of(int all) {
  int count = 0;
  for (int i = 0; i < all; ++i) count += is_taken(i);
  return count;
}

class Cases {
 public:
  explicit Cases(const char* name) : name_(name) {
    only_ = number_in("LOCKSTEP_FUZZ_CASE", -1);
    for (const Graph& graph : seed_graphs()) seeds_.push_back(capture_of(graph));
  }
  ~Cases() {
    fmt::print("{}: {} accepted, {} refused, {} faults\n", name_, tally_.ends[End::kAccepted],
               tally_.ends[End::kRefused], tally_.ends[End::kFault]);
  }
  // damage(path, tree, newest, dice) writes the damaged file, unsealed, and returns what it did.
  template <typename Damage>
  void run(int all, Damage damage) {
    const int count = count_of(all);
    for (int i = 0; i < all; ++i) {
      if (only_ >= 0 ? i != only_ : !is_taken(i)) continue;
      Dice dice(static_cast<uint64_t>(i) * 1000003 + name_.size());
      StoredNode tree = dice.pick(seeds_);
      const std::string what = damage(path_, tree, dice);
      seal_capture(path_);
      if (tally_.count(try_file(path_), path_, fmt::format("{} {}, {}", name_, i, what))) continue;
      const std::string kept = fmt::format("{}/fuzz_{}_{}.h5", testing::kBinaryFolder, name_, i);
      std::filesystem::copy_file(path_, kept, std::filesystem::copy_options::overwrite_existing);
    }
    // Damage that is always refused, or never, would test nothing.
    if (only_ >= 0) return;
    const int accepted = tally_.ends[End::kAccepted], refused = tally_.ends[End::kRefused];
    CHECK(accepted + refused == count);
    CHECK(std::min(accepted, refused) >= std::max(1, count / 100));
  }

 private:
  std::string name_;
  int only_ = -1;
  std::vector<StoredNode> seeds_;
  Tally tally_;
  const TemporaryFolder folder_;
  const std::string path_ = folder_.file("case.h5");
};

TEST_SUITE("slow") {
  TEST_CASE("seeds are accepted") {
    const TemporaryFolder folder;
    const std::string path = folder.file("seed.h5");
    for (const Graph& graph : seed_graphs()) {
      for (const bool newest : {false, true}) {
        write_tree(path, capture_of(graph), newest);
        seal_capture(path);
        const Verdict verdict = try_file(path);
        INFO(graph.name << ": " << verdict.message);
        CHECK(verdict.end == End::kAccepted);
      }
    }
  }

  TEST_CASE("changed bytes are found before HDF5 sees them") {
    const TemporaryFolder folder;
    const std::string path = folder.file("case.h5");
    std::vector<std::string> seeds;
    for (const Graph& graph : seed_graphs()) {
      write_tree(path, capture_of(graph), seeds.size() % 2 == 0);
      seal_capture(path);
      seeds.push_back(read_text_file(path));
    }
    int refused = 0, harmless = 0;
    const int count = count_of(kRawCases);
    for (int i = 0; i < kRawCases; ++i) {
      if (!is_taken(i)) continue;
      Dice dice(static_cast<uint64_t>(i));
      const std::string& seed = dice.pick(seeds);
      const std::string changed = damaged_bytes(seed, dice);
      write_text_file_atomically(path, changed);
      try {
        check_file_block(path, kCaptureBlock);
        // The bytes 64 to 511 of the block have no meaning and are not read.
        const bool same_data = changed.size() == seed.size() &&
                               changed.substr(0, 64) == seed.substr(0, 64) &&
                               changed.substr(kBlockBytes) == seed.substr(kBlockBytes);
        CHECK(same_data);
        ++harmless;
      } catch (const InputError& error) {
        ++refused;
        CHECK(says_what_is_wrong(error.what(), path));
      }
    }
    fmt::print("raw: {} refused, {} harmless\n", refused, harmless);
    CHECK(refused + harmless == count);
    CHECK(harmless < count / 50);
  }

  TEST_CASE("damaged groups, datasets and attributes") {
    Cases("schema").run(kSchemaCases, [](const std::string& path, StoredNode& tree, Dice& dice) {
      std::string what = damage_tree(tree, dice);
      while (dice.one_in(4)) what += "; " + damage_tree(tree, dice);
      write_tree(path, tree, dice.one_in(2));
      return what;
    });
  }

  TEST_CASE("damaged graphs") {
    Cases("graph").run(kGraphCases, [](const std::string& path, StoredNode& tree, Dice& dice) {
      const std::string what = damage_graph(tree, dice);
      write_tree(path, tree, dice.one_in(2));
      return what;
    });
  }

  TEST_CASE("odd but consistent graphs") {
    const std::vector<Graph> seeds = seed_graphs();
    Cases("odd").run(kOddCases, [&](const std::string& path, StoredNode& tree, Dice& dice) {
      tree = capture_of(odd_graph(dice.pick(seeds), dice));
      write_tree(path, tree, false);
      return std::string("odd graph");
    });
  }

  TEST_CASE("damage that only HDF5 can express") {
    Cases("hdf5").run(kHdf5Cases, [](const std::string& path, StoredNode& tree, Dice& dice) {
      write_tree(path, tree, dice.one_in(2));
      return damage_hdf5(path, dice);
    });
  }

  TEST_CASE("changed bytes of HDF5 with a right checksum") {
    Cases("bytes").run(kByteCases, [](const std::string& path, StoredNode& tree, Dice& dice) {
      write_tree(path, tree, dice.one_in(2));
      const std::string bytes = read_text_file(path);
      const std::string changed = damaged_bytes(bytes.substr(kBlockBytes), dice);
      write_text_file_atomically(path, bytes.substr(0, kBlockBytes) + changed);
      return std::string("bytes");
    });
  }
}

}  // namespace
}  // namespace lockstep::testing

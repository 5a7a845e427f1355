// The same targets under libFuzzer, which prefers inputs that reach new code (CMake preset `fuzz`):
//   LOCKSTEP_FUZZ_TARGET=policy lockstep_fuzz_guided NEW_CORPUS tests/fuzz/corpus/policy
// Files that readers open in a child process (src/record/hdf5/sandbox.h) are reached, but what
// the child runs is not seen.
#include <fmt/format.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "src/core/parallel.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/seed_files.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::fuzz {
namespace {

struct Guided {
  const Target* target = nullptr;
  Place place;
  std::vector<std::string> seeds;
};
Guided& guided() {
  static Guided all;
  return all;
}

void prepare() {
  const char* name = std::getenv("LOCKSTEP_FUZZ_TARGET");
  if (name == nullptr) throw std::runtime_error("LOCKSTEP_FUZZ_TARGET=NAME required");
  static const testing::TemporaryFolder folder;
  set_thread_count(1);
  seed_folder() = folder.file("seeds");
  std::filesystem::create_directories(seed_folder());
  make_seed_files(seed_folder());
  Guided& all = guided();
  all.target = &find_target(name);
  all.place.folder = folder.path();
  all.seeds = all.target->seeds();
  // run_program sends standard error to a file.
  __sanitizer_set_report_fd(reinterpret_cast<void*>(static_cast<intptr_t>(dup(STDERR_FILENO))));
}

}  // namespace
}  // namespace lockstep::fuzz

using lockstep::fuzz::guided;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  try {
    lockstep::fuzz::prepare();
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep_fuzz_guided: {}\n", error.what());
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const auto verdict = judge(*guided().target, input, guided().place);
  if (verdict.end == lockstep::fuzz::End::kFinding) {
    fmt::print(stderr, "{}: {}\n", guided().target->name, verdict.message);
    std::abort();
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  lockstep::fuzz::Dice dice(seed);
  std::string input(reinterpret_cast<const char*>(data), size);
  if (size < 2) input = dice.pick(guided().seeds);
  input = mutate(input, guided().target->grammar, guided().seeds, dice);
  const size_t kept = std::min(input.size(), most);
  std::memcpy(data, input.data(), kept);
  return kept;
}

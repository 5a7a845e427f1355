// See verify_run.h.
#include "src/cli/verify_run.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "src/cli/command.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/counted.h"
#include "src/core/text.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/run_reader.h"

namespace lockstep {
namespace {

int worse(int a, int b) {  // a damaged file, then one that cannot be judged
  if (a == kExitRegression || b == kExitRegression) return kExitRegression;
  return a == kExitFine ? b : a;
}

int verify_seed(const RunFile& run, const std::string& name) {
  const RunFile::Proof proof = run.prove();
  const std::string what = fmt::format("{} of {}", counted(run.steps(), "complete step"),
                                       counted(static_cast<int64_t>(run.lanes().size()), "lane"));
  for (const std::string& problem : proof.problems) {
    print_line(fmt::format("{}: {}", name, problem));
  }
  if (!proof.problems.empty()) return kExitRegression;
  if (!run.has_checksums()) {
    print_line(name +
               ": nothing proven: an earlier version of Lockstep wrote it, without checksums");
    return kExitInconclusive;
  }
  print_line(fmt::format("{}: whole: {}, {} rows", name, what,
                         with_thousands(static_cast<unsigned long long>(proof.rows))));
  return kExitFine;
}

int verify_checkpoint(const std::string& path) {
  try {
    const Checkpoint found = read_checkpoint_file(path);
    print_line(fmt::format("{}: whole: after {}", path, counted(found.run.steps_done, "step")));
    return kExitFine;
  } catch (const DamagedFile& error) {
    print_text(error.what() + std::string("\n"));
    return kExitRegression;
  } catch (const InputError&) {
    if (!looks_like_hdf5(path)) throw;
    print_line(path +
               ": nothing proven: an earlier version of Lockstep wrote it, without a checksum");
    return kExitInconclusive;
  }
}

}  // namespace

void note_missing_checksums(const RunFile& run) {
  if (run.has_checksums()) return;
  print_note(
      fmt::format("note: {}: an earlier version wrote it, without checksums of rows: damage "
                  "would go unnoticed",
                  run.path()));
}

int verify_run_file(const std::string& path) {
  if (is_being_written(path)) {
    throw InputError(fmt::format("'{}': another program is writing it", path),
                     "verify it when that has ended");
  }
  int code = kExitFine;
  const std::vector<uint64_t> seeds = RunFile::of_any_run(path, /*allow_empty=*/true).seeds();
  for (const uint64_t seed : seeds) {
    const RunFile run = RunFile::of_any_run(path, /*allow_empty=*/true, seed);
    const std::string name = seeds.size() == 1 ? path : fmt::format("{}, seed {}", path, seed);
    code = worse(code, verify_seed(run, name));
  }
  for (const std::string& checkpoint : checkpoint_paths(path)) {
    std::error_code ignored;
    if (std::filesystem::exists(checkpoint, ignored)) {
      code = worse(code, verify_checkpoint(checkpoint));
    }
  }
  return code;
}

}  // namespace lockstep

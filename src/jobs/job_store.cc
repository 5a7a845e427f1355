#include "src/jobs/job_store.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/run/run_end.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

// "0123456789abcdef.h5", the joined run, and what stands next to a run file.
bool is_result(const std::string& name) {
  constexpr size_t kHashDigits = 16;
  const std::string stem = name.substr(0, name.find('.'));
  const bool is_hash =
      stem.size() == kHashDigits && stem.find_first_not_of("0123456789abcdef") == std::string::npos;
  return name.find(".h5") == stem.size() && (is_hash || stem == kJoined);
}

}  // namespace

JobStore::JobStore(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    throw InputError(fmt::format("folder '{}': cannot be made: {}", folder_, error.message()),
                     "choose another -o, in a folder that is writable");
  }
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (is_result(name)) continue;
    throw InputError(
        fmt::format("folder '{}': is there already and holds {}", folder_, printable(name)),
        "choose another -o: this folder is for the results of single parts");
  }
}

void JobStore::clear() const {
  std::error_code error;
  std::vector<fs::path> results;
  for (const auto& entry : fs::directory_iterator(folder_, error)) results.push_back(entry.path());
  for (const fs::path& path : results) {
    if (is_result(path.filename().string())) fs::remove(path, error);
  }
}

JobStore::~JobStore() {
  std::error_code ignored;
  fs::remove(folder_, ignored);
}

std::string JobStore::path_of(const Job& job) const {
  return (fs::path(folder_) / (job.hash + ".h5")).string();
}

bool JobStore::has(const Job& job) const {
  const std::string path = path_of(job);
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  try {
    const RunFile run(path);
    return run.options().capture_hash == job.options.capture_hash && has_all_steps(run) &&
           run.prove().problems.empty();
  } catch (const InputError&) {  // a kill came before its first step, or the file is damaged
    return false;
  }
}

void JobStore::forget(const Job& job) const {
  const std::string path = path_of(job);
  std::error_code ignored;
  fs::remove(path, ignored);
  for (const std::string_view ending : kNextToRun) fs::remove(path + std::string(ending), ignored);
}

}  // namespace lockstep

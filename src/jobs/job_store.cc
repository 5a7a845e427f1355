#include "src/jobs/job_store.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "src/core/error.h"
#include "src/record/run/run_end.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"

namespace lockstep {

namespace fs = std::filesystem;

JobStore::JobStore(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    throw InputError(fmt::format("folder '{}': cannot be made: {}", folder_, error.message()),
                     "choose another -o, in a folder that is writable");
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

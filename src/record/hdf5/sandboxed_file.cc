// The child's side and the parent's: a request is a RowRequest and a path, its answer a letter and
// the rows' bytes, or the text of a problem.
#include "src/record/hdf5/sandboxed_file.h"

#include <fmt/format.h>

#include <map>
#include <stdexcept>
#include <vector>

#include "src/core/error.h"
#include "src/record/hdf5/growing_dataset.h"

namespace lockstep {
namespace {

struct RowRequest {
  int64_t begin = 0, count = 0;
  uint64_t row_bytes = 0, path_bytes = 0;
};
constexpr char kRows = 'R', kProblem = 'X';
constexpr uint64_t kMostProblemBytes = 1 << 16;

template <typename T>
std::string_view bytes_of_value(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Answers requests until the parent closes the socket.
void serve_rows(hid_t file, const SandboxRead& requests, const SandboxWrite& write) {
  std::map<std::string, GrowingDataset> open;
  std::vector<char> rows;
  RowRequest request;
  while (requests(reinterpret_cast<char*>(&request), sizeof request) == sizeof request) {
    std::string path(request.path_bytes, '\0');
    if (requests(path.data(), path.size()) != path.size()) return;
    try {
      auto found = open.find(path);
      if (found == open.end()) {
        found = open.emplace(path, GrowingDataset::open(file, path)).first;
      }
      const GrowingDataset& dataset = found->second;
      if (dataset.row_bytes() != request.row_bytes) throw hdf5::Error(path + ": changed its width");
      dataset.require_written(request.begin, request.count);
      rows.resize(static_cast<size_t>(request.count) * request.row_bytes);
      dataset.read_rows(request.begin, request.count, rows.data());
      write({&kRows, 1});
      write({rows.data(), rows.size()});
    } catch (const hdf5::Error& error) {
      const std::string_view what = std::string_view(error.what()).substr(0, kMostProblemBytes);
      write({&kProblem, 1});
      write(bytes_of_value(static_cast<uint64_t>(what.size())));
      write(what);
    }
  }
}

void be_reader(const std::string& path, const DumpRequest& dump, const SandboxRead& requests,
               const SandboxWrite& write) {
  hdf5::be_quiet();
  H5PLset_loading_state(0);  // no plug-in is loaded for the file's filters
  hdf5::Handle file;
  try {
    const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
    H5Pset_file_locking(access.id(), false, true);  // for file systems without locks
    file = hdf5::Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "open it");
  } catch (const hdf5::Error& error) {
    return write(stored_frame::problem(error.what()));
  }
  dump_tree(file.id(), dump, write);
  serve_rows(file.id(), requests, write);
}

}  // namespace

SandboxLimits limits_of_file(uint64_t file_bytes, uint64_t least_content, uint64_t growth) {
  constexpr double kLeastSeconds = 20, kBytesPerSecond = 20e6, kClockPerProcessor = 3;
  SandboxLimits limits;
  limits.seconds = kLeastSeconds + static_cast<double>(file_bytes) / kBytesPerSecond;
  limits.clock_seconds = kClockPerProcessor * limits.seconds;
  limits.memory_bytes = limits.output_bytes = 2 * (least_content + growth * file_bytes);
  return limits;
}

SandboxedFile::SandboxedFile(const std::string& path, const DumpRequest& request,
                             const SandboxLimits& limits) {
  child_ = std::make_unique<Sandbox>(limits,
                                     [&](const SandboxRead& requests, const SandboxWrite& write) {
                                       be_reader(path, request, requests, write);
                                     });
  try {
    tree_ = parse_stored_frames([&](char* into, size_t count) { return child_->read(into, count); },
                                limits.output_bytes, request.texts);
  } catch (const InputError& error) {
    throw hdf5::Error(error.what());
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("it needs more memory than there is");
  }
}

void SandboxedFile::read_rows(const std::string& path, int64_t begin, int64_t count,
                              size_t row_bytes, void* out) {
  const RowRequest request{begin, count, row_bytes, path.size()};
  child_->ask(std::string(bytes_of_value(request)) + path);
  const auto take = [&](void* into, size_t bytes) {
    if (child_->read(static_cast<char*>(into), bytes) == bytes) return;
    throw std::runtime_error("its reader ended early");
  };
  char kind = 0;
  take(&kind, 1);
  if (kind == kRows) return take(out, static_cast<size_t>(count) * row_bytes);
  uint64_t length = 0;
  take(&length, sizeof length);
  if (kind != kProblem || length > kMostProblemBytes) {
    throw std::runtime_error("its reader gave no answer");
  }
  std::string problem(length, '\0');
  take(problem.data(), problem.size());
  throw hdf5::Error(problem);
}

}  // namespace lockstep

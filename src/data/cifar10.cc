// CIFAR-10's binary version: data_batch_1..5.bin train, test_batch.bin is held out.
//   record, 3073 bytes:  label | 1024 red | 1024 green | 1024 blue, each 32x32 row-major
// Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
#include <filesystem>
#include <optional>

#include "src/core/text.h"
#include "src/data/idx.h"
#include "src/data/image_set.h"
#include "src/data/sources.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kClasses = 10;
constexpr size_t kPixels = 3 * 32 * 32;
constexpr size_t kRecord = 1 + kPixels;

void load_file(const fs::path& path, ImageSetContents& contents, ProblemList& problems) {
  const std::optional<std::vector<uint8_t>> bytes = read_maybe_gzip(path.string(), problems);
  if (!bytes) return;
  if (bytes->empty() || bytes->size() % kRecord != 0) {
    const size_t whole = (bytes->size() / kRecord + 1) * kRecord;
    problems.add(path.string() + ": truncated: records of " + std::to_string(kRecord) +
                 " bytes need " + std::to_string(whole) + " bytes, found " +
                 std::to_string(bytes->size()));
    return;
  }
  for (size_t begin = 0; begin < bytes->size(); begin += kRecord) {
    const auto record = bytes->begin() + static_cast<ptrdiff_t>(begin);
    if (record[0] >= kClasses) {
      problems.add(path.string() + ": label " + std::to_string(record[0]) + " at index " +
                       std::to_string(begin / kRecord) + ": must be in 0.." +
                       std::to_string(kClasses - 1),
                   "this reader needs CIFAR-10's binary version, not CIFAR-100's");
      return;
    }
    contents.labels.push_back(record[0]);
    contents.pixels.insert(contents.pixels.end(), record + 1, record + kRecord);
  }
}

std::unique_ptr<DataSet> open_cifar10(std::string_view argument, const DataRequest&) {
  const fs::path folder{std::string(argument)};
  ProblemList problems("data 'cifar10:" + std::string(argument) + "'");
  std::vector<std::string> names;
  for (int i = 1; i <= 5; ++i) names.push_back("data_batch_" + std::to_string(i) + ".bin");
  names.push_back("test_batch.bin");

  std::vector<std::string> missing;
  std::error_code ignored;
  for (const std::string& name : names) {
    if (!fs::is_regular_file(folder / name, ignored)) missing.push_back(name);
  }
  if (!missing.empty()) {
    problems.add("missing in '" + folder.string() + "': " + join(missing, ", "),
                 "give the folder cifar-10-batches-bin of CIFAR-10's binary version");
    problems.throw_if_any();
  }

  ImageSetContents contents;
  contents.name = "cifar10";
  contents.image_shape = {3, 32, 32};
  contents.class_count = kClasses;
  // Per-channel statistics of the training pixels in 0..1: the constants in common use.
  contents.mean = {0.4914f, 0.4822f, 0.4465f};
  contents.std = {0.2470f, 0.2435f, 0.2616f};
  for (const std::string& name : names) {
    if (name == names.back()) contents.train_count = static_cast<int64_t>(contents.labels.size());
    load_file(folder / name, contents, problems);
  }
  problems.throw_if_any();
  return make_image_set(std::move(contents));
}

}  // namespace

DataSource cifar10_data() {
  return {.kind = "cifar10",
          .argument = "DIR",
          .help = "CIFAR-10 binary batches",
          .tasks = {Task::kImages},
          .open = &open_cifar10};
}

}  // namespace lockstep

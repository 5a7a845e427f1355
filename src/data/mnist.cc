// MNIST and Fashion-MNIST: finds the files of the data set and checks that images and labels fit.
// Both naming styles are found (train-images-idx3-ubyte, train-images.idx3-ubyte), plain before
// .gz.
//   train and t10k files   train examples, t10k held out
//   one pair alone         split 80/20 in file order
#include <filesystem>
#include <optional>

#include "src/data/idx.h"
#include "src/data/image_set.h"
#include "src/data/sources.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kClasses = 10;

struct Variant {
  std::string name;
  float mean, std;  // of the training pixels in 0..1: the constants in common use for each set
  std::string hint;
};

std::vector<std::string> candidates(std::string_view part, std::string_view kind, int rank) {
  std::vector<std::string> names;
  for (const char* joint : {"-", "."}) {
    for (const char* suffix : {"", ".gz"}) {
      names.push_back(std::string(part) + "-" + std::string(kind) + joint + "idx" +
                      std::to_string(rank) + "-ubyte" + suffix);
    }
  }
  return names;
}

std::optional<fs::path> find_one(const fs::path& folder, const std::vector<std::string>& names) {
  std::error_code ignored;
  for (const std::string& name : names) {
    if (fs::is_regular_file(folder / name, ignored)) return folder / name;
  }
  return std::nullopt;
}

struct Pair {
  std::string images_name, labels_name;  // the first candidates, for messages
  std::optional<fs::path> images, labels;
  bool any() const { return images || labels; }
};

Pair find_pair(const fs::path& folder, std::string_view part) {
  const auto images = candidates(part, "images", 3);
  const auto labels = candidates(part, "labels", 1);
  return {images.front(), labels.front(), find_one(folder, images), find_one(folder, labels)};
}

void check_labels(const IdxArray& labels, const std::string& path, ProblemList& problems) {
  for (size_t i = 0; i < labels.values.size(); ++i) {
    if (labels.values[i] < kClasses) continue;
    problems.add(path + ": label " + std::to_string(labels.values[i]) + " at index " +
                 std::to_string(i) + ": must be in 0.." + std::to_string(kClasses - 1));
    return;  // one report is enough: a wrong file has thousands
  }
}

// Appends a pair's examples to `contents`.
void load_pair(const Pair& pair, ImageSetContents& contents, ProblemList& problems) {
  if (!pair.images || !pair.labels) {
    problems.add("missing file " + (pair.images ? pair.labels_name : pair.images_name) +
                 " (or .gz) next to " + (pair.images ? *pair.images : *pair.labels).string());
    return;
  }
  const IdxArray images = read_idx(pair.images->string(), 3, problems);
  const IdxArray labels = read_idx(pair.labels->string(), 1, problems);
  check_labels(labels, pair.labels->string(), problems);
  if (images.shape.empty() || labels.shape.empty()) return;  // already reported
  if (images.shape[0] != labels.shape[0]) {
    problems.add(std::to_string(images.shape[0]) + " images in " + pair.images->string() +
                 ", but " + std::to_string(labels.shape[0]) + " labels in " +
                 pair.labels->string());
    return;
  }
  const Shape shape = {1, images.shape[1], images.shape[2]};
  if (images.values.empty()) {
    problems.add(pair.images->string() + ": shape " + to_string(images.shape) + " holds no pixels");
    return;
  }
  if (!contents.image_shape.empty() && contents.image_shape != shape) {
    problems.add(pair.images->string() + ": image shape " + to_string(shape) +
                 " differs from the training images' " + to_string(contents.image_shape));
    return;
  }
  contents.image_shape = shape;
  contents.pixels.insert(contents.pixels.end(), images.values.begin(), images.values.end());
  contents.labels.insert(contents.labels.end(), labels.values.begin(), labels.values.end());
}

std::unique_ptr<DataSet> open_idx(std::string_view argument, const Variant& variant) {
  const fs::path folder{std::string(argument)};
  ProblemList problems("data '" + variant.name + ":" + std::string(argument) + "'");
  const Pair train = find_pair(folder, "train");
  const Pair test = find_pair(folder, "t10k");

  ImageSetContents contents;
  if (train.any() || test.any()) {
    if (train.any()) load_pair(train, contents, problems);
    contents.train_count = static_cast<int64_t>(contents.labels.size());
    if (test.any()) load_pair(test, contents, problems);
  } else {
    std::error_code ignored;
    const bool is_folder = fs::is_directory(folder, ignored);
    problems.add(is_folder ? "missing files: neither train-images-idx3-ubyte with "
                             "train-labels-idx1-ubyte nor t10k-images-idx3-ubyte with "
                             "t10k-labels-idx1-ubyte (each plain or .gz)"
                           : "'" + folder.string() + "' is not a folder",
                 variant.hint);
  }
  problems.throw_if_any();

  const int64_t count = static_cast<int64_t>(contents.labels.size());
  if (!train.any() || !test.any()) contents.train_count = split_train_count(count);
  contents.name = variant.name;
  contents.class_count = kClasses;
  contents.mean = {variant.mean};
  contents.std = {variant.std};
  return make_image_set(std::move(contents));
}

constexpr char kHint[] = "give the folder that holds the IDX files, e.g. mnist:data/mnist";
constexpr char kFashionHint[] = "give the folder that holds the IDX files, e.g. fashion-mnist:data";

std::unique_ptr<DataSet> open_mnist(std::string_view argument, const DataRequest&) {
  return open_idx(argument, {"mnist", 0.1307f, 0.3081f, kHint});
}

std::unique_ptr<DataSet> open_fashion_mnist(std::string_view argument, const DataRequest&) {
  return open_idx(argument, {"fashion-mnist", 0.2860f, 0.3530f, kFashionHint});
}

}  // namespace

DataSource mnist_data() {
  return {.kind = "mnist",
          .argument = "DIR",
          .help = "MNIST IDX files, plain or .gz",
          .tasks = {Task::kImages},
          .open = &open_mnist};
}

DataSource fashion_mnist_data() {
  return {.kind = "fashion-mnist",
          .argument = "DIR",
          .help = "Fashion-MNIST IDX files, plain or .gz",
          .tasks = {Task::kImages},
          .open = &open_fashion_mnist};
}

}  // namespace lockstep

// The contents of data sets read from files, and clear errors for faulty files.
#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/data/dataset.h"
#include "src/data/digit_strokes.h"
#include "src/data/idx.h"
#include "src/data/sources.h"
#include "tests/support/folders.h"
#include "tests/support/refusal.h"

using namespace lockstep;
namespace fs = std::filesystem;

namespace {

using Bytes = std::vector<uint8_t>;

// A folder for each test case, removed at the end.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::path(testing::kBinaryFolder) / "data" / name) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  void write_gzip(const std::string& name, const Bytes& bytes) const {
    gzFile file = gzopen((path_ / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  void cut(const std::string& name, uintmax_t bytes) const { fs::resize_file(path_ / name, bytes); }
  std::string spec(const std::string& kind) const { return kind + ":" + path_.string(); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void append_extent(Bytes& bytes, uint32_t extent) {
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<uint8_t>(extent >> shift));
}

// Pixel i of image n is (7 n + i) mod 256.
Bytes idx_images(uint32_t count, uint32_t height = 3, uint32_t width = 2) {
  Bytes bytes = {0, 0, 8, 3};
  for (const uint32_t extent : {count, height, width}) append_extent(bytes, extent);
  for (uint32_t n = 0; n < count; ++n) {
    for (uint32_t i = 0; i < height * width; ++i) {
      bytes.push_back(static_cast<uint8_t>(7 * n + i));
    }
  }
  return bytes;
}

Bytes idx_labels(const Bytes& labels) {
  Bytes bytes = {0, 0, 8, 1};
  append_extent(bytes, static_cast<uint32_t>(labels.size()));
  bytes.insert(bytes.end(), labels.begin(), labels.end());
  return bytes;
}

Bytes labels_mod_10(uint32_t count, uint32_t offset = 0) {
  Bytes labels;
  for (uint32_t i = 0; i < count; ++i) labels.push_back(static_cast<uint8_t>((i + offset) % 10));
  return idx_labels(labels);
}

// The message of the InputError that opening must throw.
std::string opening_error(const std::string& spec) {
  return testing::error_of([&] { open_data_set(spec, {}); });
}

bool contains_text(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("'" << part << "' is not in: " << text);
  return found;
}

uint32_t hash_of(const Tensor& tensor) {
  return static_cast<uint32_t>(
      crc32(0, static_cast<const Bytef*>(tensor.raw()), static_cast<unsigned>(tensor.bytes())));
}

std::vector<int64_t> first(int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return indices;
}

}  // namespace

TEST_CASE("synthetic digits: a pure function of seed and index, the same bits everywhere") {
  const auto data = open_data_set("synthetic", {});
  CHECK(data->describe() == "synthetic: 8000 train, 2000 held-out, 1x28x28");
  CHECK(data->class_count() == 10);
  const Batch batch = data->gather(first(64));
  CHECK(batch.at("images").shape() == Shape{64, 1, 28, 28});
  CHECK(batch.at("labels").shape() == Shape{64});
  // Golden: computed once; a change here changes every run that uses the default data.
  CHECK(hash_of(batch.at("images")) == 1715325734u);
  const auto labels = batch.at("labels").as<int32_t>();
  const std::vector<int32_t> head(labels.begin(), labels.begin() + 10);
  CHECK(head == std::vector<int32_t>{5, 5, 1, 5, 1, 8, 7, 3, 9, 0});

  SUBCASE("threads and the number of examples do not matter") {
    const int threads = thread_count();
    set_thread_count(threads == 1 ? 2 : 1);
    const auto again = open_data_set("synthetic:100", {});
    set_thread_count(threads);
    CHECK(again->train_count() == 80);
    CHECK(again->held_out_count() == 20);
    CHECK(again->gather(first(64)).at("images").same_bits(batch.at("images")));
  }
  SUBCASE("another seed draws other digits") {
    const auto other = open_data_set("synthetic:100", {.seed = 2});
    CHECK_FALSE(other->gather(first(64)).at("images").same_bits(batch.at("images")));
  }
  SUBCASE("an example is the same alone and in a batch") {
    const std::vector<int64_t> one = {63};
    const Batch alone = data->gather(one);
    const auto whole = batch.at("images").as<float>();
    const auto single = alone.at("images").as<float>();
    CHECK(std::equal(single.begin(), single.end(), whole.end() - 784));
  }
}

TEST_CASE("synthetic digits: normalised, all classes, held-out ones are new") {
  const auto data = open_data_set("synthetic", {});
  const Batch batch = data->gather(first(10000));
  double sum = 0, sum_sq = 0;
  const auto pixels = batch.at("images").as<float>();
  for (const float x : pixels) sum += x, sum_sq += static_cast<double>(x) * x;
  const double n = static_cast<double>(pixels.size());
  const double mean = sum / n, variance = sum_sq / n - mean * mean;
  // The constants are cut to four digits of a value in 0..1, then divided by the deviation.
  const double cut = 0.5e-4 / 0.2391;
  CHECK(std::abs(mean) <= cut);
  CHECK(std::abs(std::sqrt(variance) - 1) <= cut);

  std::vector<int> count(10);
  for (const int32_t label : batch.at("labels").as<int32_t>())
    ++count.at(static_cast<size_t>(label));
  // Binomial(10000, 1/10) within 5 sigma, sigma = sqrt(10000 * 0.1 * 0.9) = 30.
  for (const int c : count) CHECK(std::abs(c - 1000) <= 150);

  std::set<uint32_t> hashes;
  for (int64_t i = 0; i < 10000; ++i) {
    const std::vector<int64_t> one = {i};
    hashes.insert(hash_of(data->gather(one).at("images")));
  }
  CHECK(hashes.size() == 10000);
}

TEST_CASE("glyphs: every digit, ascending, inside the box; loops close") {
  int last = 0;
  for (const Glyph& glyph : glyphs()) {
    CHECK(glyph.digit >= last);
    last = glyph.digit;
    for (const Stroke& stroke : glyph.strokes) {
      CHECK(stroke.points.size() >= 2);
      for (const Point2 p : stroke.points) CHECK((p.x >= 0 && p.x <= 1 && p.y >= 0 && p.y <= 1));
      const auto flat = flatten_stroke(stroke, 4);
      // The spline's end point is a sum of 12 terms of at most 5: at most 60 u off each time.
      const double rounding = 12 * 60 * std::ldexp(1.0, -53);
      const bool closes = std::abs(flat.front().x - flat.back().x) <= rounding &&
                          std::abs(flat.front().y - flat.back().y) <= rounding;
      CHECK(closes == (stroke.kind == StrokeKind::kLoop));
    }
  }
  for (int digit = 0; digit < 10; ++digit) CHECK(glyphs_of(digit).front().digit == digit);
  CHECK_THROWS_AS(glyphs_of(10), std::logic_error);
}

TEST_CASE("IDX: both naming styles, plain and gzip, the numbers of the file") {
  Folder folder("idx");
  SUBCASE("plain, dash") {
    folder.write("t10k-images-idx3-ubyte", idx_images(10));
    folder.write("t10k-labels-idx1-ubyte", labels_mod_10(10));
  }
  SUBCASE("gzip, dot") {
    folder.write_gzip("t10k-images.idx3-ubyte.gz", idx_images(10));
    folder.write_gzip("t10k-labels.idx1-ubyte.gz", labels_mod_10(10));
  }
  const auto data = open_data_set(folder.spec("mnist"), {});
  CHECK(data->describe() == "mnist: 8 train, 2 held-out, 1x3x2");
  const std::vector<int64_t> indices = {9, 0};
  const Batch batch = data->gather(indices);
  const auto x = batch.at("images").as<float>();
  // (x / 255 - mean) / std in float, operation by operation, as torchvision does it.
  CHECK(x[0] == (63.0f / 255.0f - 0.1307f) / 0.3081f);
  CHECK(x[6] == (0.0f / 255.0f - 0.1307f) / 0.3081f);
  CHECK(batch.at("labels").as<int32_t>()[0] == 9);
  CHECK(batch.at("labels").as<int32_t>()[1] == 0);
  CHECK_THROWS_AS(data->gather(std::vector<int64_t>{10}), std::out_of_range);
}

TEST_CASE("IDX: train files train, t10k files are held out; Fashion-MNIST has its own constants") {
  Folder folder("idx_split");
  folder.write("train-images-idx3-ubyte", idx_images(3));
  folder.write("train-labels-idx1-ubyte", labels_mod_10(3));
  folder.write("t10k-images-idx3-ubyte", idx_images(2));
  folder.write("t10k-labels-idx1-ubyte", labels_mod_10(2, 7));
  const auto data = open_data_set(folder.spec("fashion-mnist"), {});
  CHECK(data->describe() == "fashion-mnist: 3 train, 2 held-out, 1x3x2");
  const Batch batch = data->gather(first(5));
  CHECK(batch.at("labels").as<int32_t>()[3] == 7);
  CHECK(batch.at("images").as<float>()[1] == (1.0f / 255.0f - 0.2860f) / 0.3530f);
}

TEST_CASE("IDX: every fault is an InputError that shows value and constraint") {
  Folder folder("idx_faults");
  const std::string images = "t10k-images-idx3-ubyte", labels = "t10k-labels-idx1-ubyte";
  folder.write(images, idx_images(10));
  folder.write(labels, labels_mod_10(10));
  const std::string spec = folder.spec("mnist");
  REQUIRE(opening_error(spec) == "");

  SUBCASE("no folder") {
    CHECK(contains_text(opening_error(spec + "/nowhere"), "is not a folder"));
  }
  SUBCASE("no files") {
    fs::remove(folder.path() / images);
    fs::remove(folder.path() / labels);
    const std::string error = opening_error(spec);
    CHECK(contains_text(error, "train-images-idx3-ubyte"));
    CHECK(contains_text(error, "t10k-labels-idx1-ubyte"));
  }
  SUBCASE("half a pair") {
    fs::remove(folder.path() / labels);
    CHECK(contains_text(opening_error(spec), "missing file t10k-labels-idx1-ubyte"));
  }
  SUBCASE("truncated: bytes needed and found") {
    folder.cut(images, 16 + 59);
    CHECK(
        contains_text(opening_error(spec), "truncated: shape [10, 3, 2] needs 76 bytes, found 75"));
  }
  SUBCASE("truncated inside the header") {
    folder.cut(images, 10);
    CHECK(contains_text(opening_error(spec), "header needs 16 bytes, found 10"));
  }
  SUBCASE("empty") {
    folder.cut(labels, 0);
    CHECK(contains_text(opening_error(spec), "header needs 8 bytes, found 0"));
  }
  SUBCASE("too long") {
    Bytes bytes = idx_images(10);
    bytes.push_back(0);
    folder.write(images, bytes);
    CHECK(
        contains_text(opening_error(spec), "too long: shape [10, 3, 2] needs 76 bytes, found 77"));
  }
  SUBCASE("absurd extents are not allocated") {
    Bytes bytes = {0, 0, 8, 3};
    for (int i = 0; i < 3; ++i) append_extent(bytes, 0xffffffffu);
    folder.write(images, bytes);
    CHECK(contains_text(opening_error(spec),
                        "truncated: shape [4294967295, 4294967295, 4294967295]"));
  }
  SUBCASE("more unpacked bytes than allowed") {
    folder.write_gzip(images + ".gz", idx_images(10, 28, 28));
    const std::string path = (folder.path() / (images + ".gz")).string();
    ProblemList problems("x");
    CHECK(!read_maybe_gzip(path, problems, 100));
    CHECK_THROWS_WITH_AS(problems.throw_if_any(),
                         ("x: " + path +
                          ": has more than 100 bytes, unpacked, at most these are "
                          "read; is it another file?")
                             .c_str(),
                         InputError);
  }
  SUBCASE("gzip cut short") {
    fs::remove(folder.path() / images);
    folder.write_gzip(images + ".gz", idx_images(10, 28, 28));
    folder.cut(images + ".gz", fs::file_size(folder.path() / (images + ".gz")) / 2);
    CHECK(contains_text(opening_error(spec), "truncated: gzip data ends after"));
  }
  SUBCASE("wrong magic") {
    folder.write(images, labels_mod_10(100));
    CHECK(contains_text(opening_error(spec), "magic number 0x00000801, expected 0x00000803"));
  }
  SUBCASE("label out of range") {
    folder.write(labels, idx_labels({0, 1, 2, 10, 4, 200, 6, 7, 8, 9}));
    CHECK(contains_text(opening_error(spec), "label 10 at index 3: must be in 0..9"));
  }
  SUBCASE("counts differ") {
    folder.write(labels, labels_mod_10(9));
    CHECK(contains_text(opening_error(spec), "10 images in "));
    CHECK(contains_text(opening_error(spec), "9 labels in "));
  }
  SUBCASE("no pixels") {
    folder.write(images, idx_images(0));
    folder.write(labels, labels_mod_10(0));
    CHECK(contains_text(opening_error(spec), "holds no pixels"));
  }
  SUBCASE("train and t10k images of different shapes") {
    folder.write("train-images-idx3-ubyte", idx_images(5, 4, 4));
    folder.write("train-labels-idx1-ubyte", labels_mod_10(5));
    CHECK(contains_text(opening_error(spec), "differs from the training images' [1, 4, 4]"));
  }
  SUBCASE("all problems at once") {
    folder.cut(images, 20);
    folder.write(labels, idx_labels({11}));
    const std::string error = opening_error(spec);
    CHECK(contains_text(error, "truncated"));
    CHECK(contains_text(error, "label 11 at index 0"));
  }
}

TEST_CASE("CIFAR-10: records, planes, and its faults") {
  Folder folder("cifar");
  const auto record = [](uint8_t label, uint8_t red, uint8_t green, uint8_t blue) {
    Bytes bytes = {label};
    for (const uint8_t value : {red, green, blue}) bytes.insert(bytes.end(), 1024, value);
    return bytes;
  };
  for (uint8_t i = 1; i <= 5; ++i) {
    folder.write("data_batch_" + std::to_string(i) + ".bin", record(i, i, 100, 200));
  }
  folder.write("test_batch.bin", record(9, 0, 0, 255));
  const std::string spec = folder.spec("cifar10");

  SUBCASE("read") {
    const auto data = open_data_set(spec, {});
    CHECK(data->describe() == "cifar10: 5 train, 1 held-out, 3x32x32");
    const Batch batch = data->gather(first(6));
    const auto x = batch.at("images").as<float>();
    CHECK(x[3 * 3072] == (4.0f / 255.0f - 0.4914f) / 0.2470f);
    CHECK(x[1024] == (100.0f / 255.0f - 0.4822f) / 0.2435f);
    CHECK(x[2 * 1024] == (200.0f / 255.0f - 0.4465f) / 0.2616f);
    CHECK(batch.at("labels").as<int32_t>()[5] == 9);
  }
  SUBCASE("missing files are all named") {
    fs::remove(folder.path() / "data_batch_2.bin");
    fs::remove(folder.path() / "test_batch.bin");
    CHECK(contains_text(opening_error(spec), "data_batch_2.bin, test_batch.bin"));
  }
  SUBCASE("truncated") {
    folder.cut("data_batch_3.bin", 3000);
    CHECK(contains_text(opening_error(spec), "need 3073 bytes, found 3000"));
  }
  SUBCASE("label out of range") {
    folder.write("data_batch_4.bin", record(77, 0, 0, 0));
    CHECK(contains_text(opening_error(spec), "label 77 at index 0: must be in 0..9"));
  }
}

TEST_CASE("data specs: unknown kinds and bad counts") {
  CHECK(contains_text(opening_error("mnits:x"), "unknown kind 'mnits'"));
  CHECK(contains_text(opening_error("mnits:x"), "did you mean 'mnist'"));
  CHECK(contains_text(opening_error("mnist"), "cifar10:DIR"));
  for (const char* count : {"0", "-5", "49", "1000001", "120x", "1e3", "99999999999999999999"}) {
    CAPTURE(count);
    CHECK(contains_text(opening_error("synthetic:" + std::string(count)),
                        "must be an integer in 50..1000000"));
  }
  CHECK(opening_error("synthetic:50") == "");
}

TEST_CASE("batch_indices: each epoch is a permutation cut into full batches, and pure") {
  const auto data = open_data_set("synthetic:100", {});  // 80 train
  const int64_t batch = 24;                              // 3 full batches, 8 left out per epoch
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> seen;
    for (int64_t step = 3 * epoch; step < 3 * epoch + 3; ++step) {
      const auto indices = batch_indices(*data, step, batch, 7);
      CHECK(indices.size() == 24);
      seen.insert(seen.end(), indices.begin(), indices.end());
    }
    const std::set<int64_t> unique(seen.begin(), seen.end());
    CHECK(unique.size() == 72);
    CHECK(*unique.begin() >= 0);
    CHECK(*unique.rbegin() < 80);
    epochs.push_back(seen);
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);

  // Calls in another order, between calls with another seed, give the same result.
  for (int64_t step = 8; step >= 0; --step) {
    const auto other = batch_indices(*data, step, batch, 8);
    const auto again = batch_indices(*data, step, batch, 7);
    const auto& epoch = epochs[static_cast<size_t>(step / 3)];
    CHECK(std::equal(again.begin(), again.end(), epoch.begin() + step % 3 * batch));
    CHECK(other != again);
  }
  // A whole epoch in one batch holds every training example once.
  auto all = batch_indices(*data, 5, 80, 7);
  std::sort(all.begin(), all.end());
  CHECK(all == first(80));

  CHECK_THROWS_AS(batch_indices(*data, 0, 81, 7), InputError);
  CHECK_THROWS_AS(batch_indices(*data, 0, 0, 7), InputError);
}

TEST_CASE("the real MNIST test digits: 8000 train, 2000 held out") {
  const fs::path folder = fs::path(testing::kSourceFolder) / ".." / "shared" / "data" / "mnist";
  if (!fs::exists(folder)) {
    MESSAGE("SKIPPED: no MNIST digits at ../shared/data/mnist");
    return;
  }
  const auto data = open_data_set("mnist:" + folder.string(), {});
  CHECK(data->describe() == "mnist: 8000 train, 2000 held-out, 1x28x28");
  const Batch batch = data->gather(first(5));
  const auto labels = batch.at("labels").as<int32_t>();
  CHECK(std::vector<int32_t>(labels.begin(), labels.end()) == std::vector<int32_t>{7, 2, 1, 0, 4});
}

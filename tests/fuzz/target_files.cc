// Data, tables and JSON files.
#include <fmt/format.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "analysis/check/baseline.h"
#include "reports/live/live_view.h"
#include "src/core/error.h"
#include "src/core/npy.h"
#include "src/core/text_file.h"
#include "src/data/sources.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/target_functions.h"

namespace lockstep::fuzz {
namespace {

namespace fs = std::filesystem;

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Reads what a training would: the first batch and the last held-out example.
void use(const DataSet& data) {
  check_text(data.describe(), "the description");
  data.gather(batch_indices(data, 0, std::min<int64_t>(data.train_count(), 2), 1));
  if (data.held_out_count() == 0) return;
  const std::vector<int64_t> last = {data.train_count() + data.held_out_count() - 1};
  data.gather(last);
}

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16, kMemory = 8;
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, kMemory, Z_DEFAULT_STRATEGY);
  std::string out(compressBound(bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

constexpr char kExamples = 20;

std::string idx_images() {
  std::string bytes("\0\0\x08\x03\0\0\0\0\0\0\0\x1c\0\0\0\x1c", 16);
  bytes[7] = kExamples;
  bytes.append(kExamples * 28 * 28, 'x');
  return bytes;
}
std::string idx_labels() {
  std::string bytes("\0\0\x08\x01\0\0\0\0", 8);
  bytes[7] = kExamples;
  for (char i = 0; i < kExamples; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

}  // namespace

Seeds csv_seeds() {
  return {
      "id,a,b,c,d,arch,instr,type_a,type_b,acc\n"
      "chip,7e00,3c00,,7fffffff,volta,mma.m8n8k4,f16,f16,f32\n"
      "mma,38 08,38 08,,,hopper,mma.m16n8k32,e4m3,e4m3,f32\n"
      "wmma,3f800000 33800000,3f800000 3f800000,,,hopper,wmma.m16n16k8,tf32,tf32,f32\n",
      "id,arch,instr,type_ab,acc,a,b,c,d\n\"quoted, text\",ampere,mma.m16n8k16,bf16,f32,3f80 "
      "4000,3f80 3f80,3f800000,\n"};
}
void read_csv(std::string_view input, const Place& place) {
  write_file(place.file("rows.csv"), input);
  run_program({"dot", "--csv", place.file("rows.csv")}, place);
}

Seeds data_seeds() {
  return {"synthetic:50",         "synthetic", "shapes:60", "grammar:10000",
          "mnist:no/such/folder", "cifar10:.", "text:none"};
}
void read_data(std::string_view input, const Place&) {
  // Drawing more than 99999 examples takes long and reads nothing.
  constexpr size_t kMostDigits = 5;
  const size_t colon = input.find(':');
  const DataSource& source = find_data_source(input);
  if (colon != std::string_view::npos && input.size() > colon + 1 + kMostDigits &&
      source.argument.front() == '[') {
    throw InputError("many examples");
  }
  use(*open_data_set(input, {.task = source.tasks[0], .context = 4}));
}

Seeds idx_seeds() {
  return {idx_images(), idx_labels(), gzip(idx_images()), gzip(idx_labels())};
}
void read_idx_file(std::string_view input, const Place& place) {
  const std::string images = "/t10k-images-idx3-ubyte", labels = "/t10k-labels-idx1-ubyte";
  // As images with good labels, and as labels of good images.
  std::string refusal;
  for (const bool as_images : {true, false}) {
    const std::string folder = place.file(as_images ? "images" : "labels");
    fs::create_directories(folder);
    write_file(folder + images, as_images ? input : idx_images());
    write_file(folder + labels, as_images ? idx_labels() : input);
    try {
      use(*open_data_set("mnist:" + folder, {.task = Task::kImages}));
      return;
    } catch (const InputError& error) {
      refusal = error.what();
      check_text(refusal, "message");
    }
  }
  throw InputError(refusal);
}

Seeds corpus_seeds() {
  std::string text;
  for (int i = 0; i < 30; ++i) text += fmt::format("line {} of a text to learn from\n", i);
  return {text, "abc\n"};
}
void read_corpus(std::string_view input, const Place& place) {
  write_file(place.file("corpus.txt"), input);
  for (const Task task : {Task::kNextToken, Task::kMaskedToken}) {
    use(*open_data_set("text:" + place.file("corpus.txt"), {.task = task, .context = 4}));
  }
}

Seeds npy_seeds() {
  return {npy_bytes(Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5, 6})),
          npy_bytes(Tensor::from<double>({1}, {0.5})), npy_bytes(Tensor::from<int32_t>({}, {7}))};
}
void read_npy(std::string_view input, const Place&) {
  const Tensor tensor = tensor_from_npy(std::string(input), "x.npy");
  if (tensor_from_npy(npy_bytes(tensor), "again").shape() != tensor.shape()) {
    throw Finding("another shape from its own bytes");
  }
}

Seeds baseline_seeds() {
  return {read_text_file(seed_file("baseline.json"))};
}
void read_baseline_text(std::string_view input, const Place&) {
  const Baseline baseline = baseline_from_json(std::string(input), "b.json");
  baseline_from_json(to_json(baseline), "again.json");
}
void check_by_baseline(std::string_view input, const Place& place) {
  const std::string path = place.file("case.json"), json = place.file("check.json");
  write_file(path, input);
  fs::remove(json);
  run_program({"check", seed_file("run.h5"), "--baseline", path, "--json", json}, place);
  if (!nlohmann::json::accept(read_text_file(json))) throw Finding("the JSON written is none");
}

Seeds snapshot_seeds() {
  return {read_text_file(seed_file("run.h5.progress.json"))};
}
void read_snapshot(std::string_view input, const Place& place) {
  const std::string path = place.file("live.h5");
  write_file(path + ".progress.json", input);
  LiveView view(path);
  const LiveNews news = view.news();
  check_text(news.sentence, "the sentence");
  check_text(news.json, "the JSON");
  const auto json = nlohmann::json::parse(news.json, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw Finding("the JSON written is none");
  if (json.value("snapshot", nlohmann::json()).is_null()) throw InputError("no snapshot");
}

}  // namespace lockstep::fuzz

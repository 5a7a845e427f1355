// The table of data kinds, and which examples form a step's batch.
#include "src/data/dataset.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "src/core/error.h"
#include "src/core/random.h"
#include "src/core/text.h"
#include "src/data/sources.h"

namespace lockstep {
namespace {

std::span<const DataSource> sources() {
  static const std::vector<Task> kLabelledImages = {Task::kImages};
  static const std::vector<Task> kTexts = {Task::kNextToken, Task::kMaskedToken};
  static const std::vector<Task> kScenes = {Task::kImages, Task::kSegmentation, Task::kDetection};
  static const DataSource kSources[] = {
      {"synthetic", "[COUNT]", "digits drawn from strokes, no file needed (10000)", kLabelledImages,
       &open_synthetic},
      {"shapes", "[COUNT]", "coloured shapes on 32x32 pixels, no file needed (10000)", kScenes,
       &open_shapes},
      {"grammar", "[COUNT]", "sentences of a small grammar, no file needed (400000 characters)",
       kTexts, &open_grammar},
      {"mnist", "DIR", "MNIST IDX files, plain or .gz", kLabelledImages, &open_mnist},
      {"fashion-mnist", "DIR", "Fashion-MNIST IDX files, plain or .gz", kLabelledImages,
       &open_fashion_mnist},
      {"cifar10", "DIR", "CIFAR-10 binary batches", kLabelledImages, &open_cifar10},
      {"text", "FILE", "any text file, byte by byte; the last tenth is held out", kTexts,
       &open_text},
  };
  return kSources;
}

std::string spec_list() {
  std::string text;
  for (const DataSource& source : sources()) {
    const bool optional = source.argument.front() == '[';
    if (!text.empty()) text += ", ";
    text += source.kind;
    text += optional ? "[:" + std::string(source.argument.substr(1))
                     : ":" + std::string(source.argument);
  }
  return text;
}

// Throws: InputError naming the kinds that serve the task.
void require_task(const DataSource& source, std::string_view spec, Task task) {
  if (std::ranges::count(source.tasks, task) > 0) return;
  std::vector<std::string> serving;
  for (const DataSource& other : sources()) {
    if (std::ranges::count(other.tasks, task) > 0) serving.emplace_back(other.kind);
  }
  throw InputError("data '" + std::string(spec) + "': has nothing for the model's task (" +
                       std::string(to_string(task)) + ")",
                   "kinds that have: " + join(serving, ", "));
}

// One epoch's order. The last one is kept: consecutive steps ask for the same epoch, and drawing
// 60 000 numbers for each of its steps would cost more than a small network's step.
const std::vector<int64_t>& epoch_order(int64_t count, uint64_t seed, int64_t epoch) {
  thread_local struct {
    int64_t count = -1, epoch = -1;
    uint64_t seed = 0;
    std::vector<int64_t> order;
  } last;
  if (last.count != count || last.epoch != epoch || last.seed != seed) {
    last.count = count, last.epoch = epoch, last.seed = seed;
    last.order.resize(static_cast<size_t>(count));
    std::iota(last.order.begin(), last.order.end(), int64_t{0});
    RandomStream(seed, RandomPurpose::kShuffle, static_cast<uint32_t>(epoch)).shuffle(last.order);
  }
  return last.order;
}

}  // namespace

std::span<const DataSource> data_sources() {
  return sources();
}

std::string_view to_string(Task task) {
  constexpr std::array<std::string_view, 5> kNames = {"labelled images", "segmentation",
                                                      "detection", "next token", "masked token"};
  return kNames.at(static_cast<size_t>(task));
}

int64_t parse_example_count(std::string_view kind, std::string_view argument, int64_t fallback,
                            int64_t low, int64_t high) {
  if (argument.empty()) return fallback;
  int64_t count = 0;
  const char* end = argument.data() + argument.size();
  const auto [stop, code] = std::from_chars(argument.data(), end, count);
  if (code != std::errc() || stop != end || count < low || count > high) {
    throw InputError("data '" + std::string(kind) + ":" + std::string(argument) +
                         "': the number must be an integer in " + std::to_string(low) + ".." +
                         std::to_string(high),
                     "e.g. " + std::string(kind) + ":" + std::to_string(fallback));
  }
  return count;
}

const DataSource& find_data_source(std::string_view spec) {
  const std::string_view kind = spec.substr(0, spec.find(':'));
  std::vector<std::string> kinds;
  for (const DataSource& source : sources()) {
    if (source.kind == kind) return source;
    kinds.emplace_back(source.kind);
  }
  throw InputError("data '" + std::string(spec) + "': unknown kind '" + std::string(kind) + "'",
                   did_you_mean(kind, kinds) + "; write one of " + spec_list());
}

std::unique_ptr<DataSet> open_data_set(std::string_view spec, const DataRequest& request) {
  const DataSource& source = find_data_source(spec);
  const size_t colon = spec.find(':');
  const bool has_argument = colon != std::string_view::npos;
  const std::string_view argument = has_argument ? spec.substr(colon + 1) : std::string_view();
  const bool optional = source.argument.front() == '[';
  if (argument.empty() && (has_argument || !optional)) {
    throw InputError("data '" + std::string(spec) + "': nothing stands behind the colon",
                     "write one of " + spec_list());
  }
  require_task(source, spec, request.task);
  return source.open(argument, request);
}

std::vector<int64_t> batch_indices(const DataSet& data, int64_t step, int64_t batch_size,
                                   uint64_t seed) {
  const int64_t count = data.train_count();
  if (batch_size < 1 || batch_size > count) {
    throw InputError("batch size " + std::to_string(batch_size) + ": must be in 1.." +
                         std::to_string(count) + ", the number of training examples",
                     "choose a smaller --batch");
  }
  const int64_t batches_per_epoch = count / batch_size;
  const std::vector<int64_t>& order = epoch_order(count, seed, step / batches_per_epoch);
  const auto begin = order.begin() + (step % batches_per_epoch) * batch_size;
  return {begin, begin + batch_size};
}

}  // namespace lockstep

// The table of data kinds, and which examples form a step's batch.
#include "src/train/data/dataset.h"

#include <numeric>

#include "src/core/error.h"
#include "src/core/random.h"
#include "src/train/data/sources.h"

namespace lockstep {
namespace {

const DataSource kSources[] = {
    {"synthetic", "[COUNT]", "digits drawn from strokes, no file needed (10000)", &open_synthetic},
    {"mnist", "DIR", "MNIST IDX files, plain or .gz", &open_mnist},
    {"fashion-mnist", "DIR", "Fashion-MNIST IDX files, plain or .gz", &open_fashion_mnist},
    {"cifar10", "DIR", "CIFAR-10 binary batches", &open_cifar10},
};

std::string spec_list() {
  std::string text;
  for (const DataSource& source : kSources) {
    const bool optional = source.argument.front() == '[';
    if (!text.empty()) text += ", ";
    text += source.kind;
    text += optional ? "[:" + std::string(source.argument.substr(1))
                     : ":" + std::string(source.argument);
  }
  return text;
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
  return kSources;
}

std::unique_ptr<DataSet> open_data_set(std::string_view spec, uint64_t seed) {
  const size_t colon = spec.find(':');
  const std::string_view kind = spec.substr(0, colon);
  const bool has_argument = colon != std::string_view::npos;
  const std::string_view argument = has_argument ? spec.substr(colon + 1) : std::string_view();

  std::vector<std::string> kinds;
  for (const DataSource& source : kSources) {
    kinds.emplace_back(source.kind);
    if (source.kind != kind) continue;
    const bool optional = source.argument.front() == '[';
    if (argument.empty() && (has_argument || !optional)) {
      throw InputError("data '" + std::string(spec) + "': nothing stands behind the colon",
                       "write one of " + spec_list());
    }
    return source.open(argument, seed);
  }
  throw InputError("data '" + std::string(spec) + "': unknown kind '" + std::string(kind) + "'",
                   did_you_mean(kind, kinds) + "; write one of " + spec_list());
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

// Chooses the examples of a step's batch.
#include "src/data/dataset.h"

#include <array>
#include <numeric>

#include "src/core/error.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

// One epoch's order. The last one is kept: consecutive steps use the same epoch, and drawing
// 60 000 numbers in each step would cost more than a small network's step.
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

std::string_view to_string(Task task) {
  constexpr std::array<std::string_view, 5> kNames = {"labelled images", "segmentation",
                                                      "detection", "next token", "masked token"};
  return kNames.at(static_cast<size_t>(task));
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

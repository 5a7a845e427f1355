// The sums are whole-tensor passes: an addition in the container, then a rounding. Together they
// act as one rounding, since no format here has more than 11 of the 24 bits (24 >= 2 * 11 + 2).
#include "src/update/all_reduce.h"

#include <algorithm>

#include "emulation/kernels/quantize.h"

namespace lockstep {
namespace {

// Adds the events of an earlier rounding to the statistics of a later one.
void join_events(TensorStats& stats, const TensorStats& earlier) {
  const auto join = [&](uint64_t TensorStats::*event) {
    // An element may saturate in several sums: the count is capped.
    stats.*event = std::min(stats.count, stats.*event + earlier.*event);
  };
  join(&TensorStats::to_zero);
  join(&TensorStats::to_infinity);
  join(&TensorStats::saturated);
}

// Rounds in place, one rounding after another, and records the events of all of them.
template <typename T>
class Rounded {
 public:
  Rounded(const KernelSet& kernels, const Format& format, TensorStats* stats)
      : kernels_(kernels), format_(&format), stats_(stats) {}

  void round(Tensor& tensor) { round(tensor, *format_); }
  void round(Tensor& tensor, const Format& format) {
    TensorStats here;
    quantize<T>(kernels_, tensor.as<T>(), tensor.as<T>(), {&format},
                stats_ == nullptr ? nullptr : &here);
    if (stats_ == nullptr) return;
    if (any_) join_events(here, *stats_);
    *stats_ = here;
    any_ = true;
  }
  void divide(Tensor& tensor, double by) {
    if (by == 1) return;
    T* x = tensor.as<T>().data();
    kernels_.of<T>().divide(x, static_cast<T>(by), x, tensor.size());
    round(tensor);
  }
  // to += x
  void add(const Tensor& x, Tensor& to) {
    T* sum = to.as<T>().data();
    kernels_.of<T>().add(sum, x.as<T>().data(), sum, to.size());
    round(to);
  }

 private:
  const KernelSet& kernels_;
  const Format* format_;
  TensorStats* stats_;
  bool any_ = false;
};

// The addend of every element in the k-th stage of a ring, k = 1, ..., W.
template <typename T>
void take_stage(const std::vector<Tensor>& workers, int64_t k, Tensor& addends) {
  const auto count = static_cast<int64_t>(workers.size()), size = addends.size();
  const int64_t chunk = (size + count - 1) / count;
  for (int64_t c = 0; c * chunk < size; ++c) {
    const int64_t begin = c * chunk, end = std::min(size, begin + chunk);
    const Tensor& from = workers[static_cast<size_t>((c + k) % count)];
    std::copy_n(from.as<T>().data() + begin, end - begin, addends.as<T>().data() + begin);
  }
}

template <typename T>
void reduce(const KernelSet& kernels, const AllReduce& how, const Format& format,
            const Format& result_format, std::vector<Tensor>& workers, Tensor& result,
            TensorStats* stats) {
  const auto count = static_cast<int64_t>(workers.size());
  Rounded<T> rounded(kernels, format, stats);
  if (how.order == AllReduce::Order::kRing) {
    Tensor addends(result.shape(), result.container());
    take_stage<T>(workers, 1, result);
    for (int64_t k = 2; k <= count; ++k) {
      take_stage<T>(workers, k, addends);
      rounded.add(addends, result);
    }
  } else if (how.order == AllReduce::Order::kAllGather) {
    std::ranges::copy(workers[0].as<T>(), result.as<T>().begin());
    for (size_t r = 1; r < workers.size(); ++r) rounded.add(workers[r], result);
  } else {
    for (int64_t distance = 1; distance < count; distance *= 2) {
      for (int64_t r = 0; r + distance < count; r += 2 * distance) {
        rounded.add(workers[static_cast<size_t>(r + distance)], workers[static_cast<size_t>(r)]);
      }
    }
    std::ranges::copy(workers[0].as<T>(), result.as<T>().begin());
  }
  rounded.divide(result, static_cast<double>(count) / divisor_before(how, count));
  if (!contains(result_format, format)) rounded.round(result, result_format);
}

}  // namespace

double divisor_before(const AllReduce& how, int64_t workers) {
  int64_t by = 1;
  switch (how.divide) {
    case AllReduce::Divide::kBefore:
      by = workers;
      break;
    case AllReduce::Divide::kAfter:
      break;
    case AllReduce::Divide::kBoth:
      while (workers % by == 0 && workers > by * by) by *= 2;
      break;
  }
  return static_cast<double>(by);
}

void enter_all_reduce(const KernelSet& kernels, const AllReduce& how, const Format& format,
                      int64_t workers, Tensor& gradient, TensorStats* stats) {
  const auto enter = [&]<typename T>(T) {
    Rounded<T> rounded(kernels, format, stats);
    rounded.round(gradient);
    rounded.divide(gradient, divisor_before(how, workers));
  };
  gradient.container() == Container::kF64 ? enter(double()) : enter(float());
}

void all_reduce(const KernelSet& kernels, const AllReduce& how, const Format& format,
                const Format& result_format, std::vector<Tensor>& workers, Tensor& result,
                TensorStats* stats) {
  if (result.container() == Container::kF64) {
    reduce<double>(kernels, how, format, result_format, workers, result, stats);
  } else {
    reduce<float>(kernels, how, format, result_format, workers, result, stats);
  }
}

}  // namespace lockstep

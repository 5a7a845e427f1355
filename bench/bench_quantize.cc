// Compares rounding, the statistics and the comparison with the reference to a memcpy.
// The peer is memcpy of the same number of floats, split over the same number of threads. Every
// array is rounded by the kernel set in use (the fastest of this CPU).
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "bench/ratio.h"
#include "emulation/format/format.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/quantize.h"
#include "src/core/parallel.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

constexpr int64_t kCacheSize = int64_t{48} << 10;   // two arrays in a core's second-level cache
constexpr int64_t kStreamSize = int64_t{64} << 20;  // 256 MiB: far beyond any cache
constexpr int64_t kPattern = int64_t{1} << 18;      // distinct elements, then they repeat
// DESIGN, section 9.
constexpr double kRoundTarget = 1.05, kMeasureTarget = 1.1;

enum class Data { kNormal, kHalfZeros, kSixtyBinades, kOverflowing, kHuge };

const char* name_of(Data data) {
  switch (data) {
    case Data::kNormal:
      return "normal";
    case Data::kHalfZeros:
      return "half zeros";
    case Data::kSixtyBinades:
      return "60 binades";
    case Data::kOverflowing:
      return "1/256 at 1e6";
    case Data::kHuge:
      return "1/256 at 1e30";
  }
  return "";
}

// Sum of twelve uniform numbers less six: close enough to N(0, 1) for exponents.
double bell(const RandomStream& random, uint64_t i) {
  constexpr int kTerms = 12;
  double sum = -kTerms / 2;
  for (int t = 0; t < kTerms; ++t) sum += random.uniform(i * kTerms + static_cast<uint64_t>(t));
  return sum;
}

void fill(std::span<float> values, Data data) {
  const RandomStream random(1, RandomPurpose::kTest, 1), more(1, RandomPurpose::kTest, 2);
  const size_t distinct = std::min<size_t>(values.size(), kPattern);
  for (size_t i = 0; i < distinct; ++i) {
    double x = bell(random, i);
    const uint32_t bits = more.bits(i);
    constexpr int kBinades = 60, kTop = 15;
    if (data == Data::kHalfZeros && bits % 2 == 0) x = 0;
    if (data == Data::kSixtyBinades)
      x = std::ldexp(x / 8, kTop - static_cast<int>(bits % kBinades));
    if (data == Data::kOverflowing && bits % 256 == 0) x = 1e6;
    if (data == Data::kHuge && bits % 256 == 0) x = 1e30;  // over 100 binades from the least
    values[i] = static_cast<float>(x);
  }
  for (size_t i = distinct; i < values.size(); ++i) values[i] = values[i - distinct];
}

void copy(const float* from, float* to, int64_t count) {
  const int64_t parts = count == kStreamSize ? thread_count() : 1;
  const int64_t part = count / parts;
  parallel_for(parts, [&](int64_t i) {
    std::memcpy(to + i * part, from + i * part, static_cast<size_t>(part) * sizeof(float));
  });
}

struct Arrays {
  explicit Arrays(int64_t n)
      : count(n),
        x(bench::make_floats(static_cast<size_t>(n))),
        y(bench::make_floats(static_cast<size_t>(n))),
        from(bench::make_floats(static_cast<size_t>(n))) {
    fill({from.get(), static_cast<size_t>(n)}, Data::kNormal);
    std::memset(y.get(), 0, static_cast<size_t>(n) * sizeof(float));
  }
  void set(Data data) { fill({x.get(), static_cast<size_t>(count)}, data); }
  int64_t count;
  bench::FloatArray x, y, from;  // memcpy: from -> y
};

struct Case {
  const char* format;
  Rounding rounding;
};
constexpr Case kCases[] = {
    {"fp16", Rounding::kNearestEven}, {"bf16", Rounding::kNearestEven},
    {"tf32", Rounding::kNearestEven}, {"fp8_e4m3", Rounding::kNearestEven},
    {"e6m9", Rounding::kNearestEven}, {"fp16", Rounding::kTowardZero},
    {"fp16", Rounding::kStochastic},
};

void run(bench::Table& table, int64_t count) {
  const bool stream = count == kStreamSize;
  const std::string size = stream ? "64 Mi" : "48 Ki";
  const auto target = [&](double t) { return stream ? t : 0; };
  Arrays a(count);
  const auto peer = [&] { copy(a.from.get(), a.y.get(), count); };
  const auto quantize = [&](const QuantizeSpec& spec, float* out, TensorStats* stats) {
    active_kernels().f32.quantize(a.x.get(), out, count, spec, stats);
  };
  const auto row = [&](const std::string& work, double at_most) {
    return bench::Row{
        work,     size,           bench::Unit::kNsPerElement, static_cast<double>(count),
        "memcpy", target(at_most)};
  };
  a.set(Data::kNormal);
  table.measure(row("memcpy itself", 0), peer, [&] { copy(a.x.get(), a.y.get(), count); });
  for (const Case& c : kCases) {
    const QuantizeSpec spec{&find_format(c.format), c.rounding, {.seed = 1}};
    const std::string name = std::string("round ") + c.format +
                             (c.rounding == Rounding::kTowardZero   ? " toward zero"
                              : c.rounding == Rounding::kStochastic ? " stochastic"
                                                                    : "");
    a.set(Data::kNormal);
    table.measure(row(name, kRoundTarget), peer, [&] { quantize(spec, a.y.get(), nullptr); });
    table.measure(row(name + ", in place", kRoundTarget), peer,
                  [&] { quantize(spec, a.x.get(), nullptr); });
  }
  for (const Data data :
       {Data::kNormal, Data::kHalfZeros, Data::kSixtyBinades, Data::kOverflowing, Data::kHuge}) {
    for (const Case& c : kCases) {
      if (data != Data::kNormal && &c != &kCases[0]) continue;
      TensorStats stats;
      const QuantizeSpec spec{&find_format(c.format), c.rounding, {.seed = 1}};
      const std::string name = std::string("round and measure ") + c.format +
                               (c.rounding == Rounding::kTowardZero   ? " toward zero"
                                : c.rounding == Rounding::kStochastic ? " stochastic"
                                                                      : "") +
                               ", " + name_of(data);
      a.set(data);
      table.measure(row(name, kMeasureTarget), peer, [&] { quantize(spec, a.y.get(), &stats); });
      // In place, an overflow would be an infinity from the second turn on.
      const bool overflows = data == Data::kOverflowing || data == Data::kHuge;
      if (&c != &kCases[0] || overflows) continue;
      table.measure(row(name + ", in place", kMeasureTarget), peer,
                    [&] { quantize(spec, a.x.get(), &stats); });
    }
  }
  a.set(Data::kNormal);
  TensorStats stats;
  const QuantizeSpec observe{.format = &find_format("fp32"), .measure_only = true};
  table.measure(row("measure only, fp32", 0), peer, [&] { quantize(observe, nullptr, &stats); });
  ErrorStats error;
  for (const auto& [scale, name] : {std::pair(1.0, std::string("compare, fp16")),
                                    std::pair(1024.0, std::string("compare, fp16, scale 1024")),
                                    std::pair(3.0, std::string("compare, fp16, scale 3"))}) {
    const auto factor = static_cast<float>(scale);
    float* const lane = a.from.get();
    for (int64_t i = 0; i < count; ++i) lane[i] = a.x.get()[i] * factor;
    active_kernels().f32.quantize(lane, lane, count, {&find_format("fp16")}, nullptr);
    table.measure(row(name, 0), peer, [&] {
      active_kernels().f32.compare(a.from.get(), a.x.get(), count, scale, find_format("fp16"),
                                   &error);
    });
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  const bench::Options options = bench::start(argc, argv);
  bench::Table table(options);
  run(table, kCacheSize);
  run(table, kStreamSize);
  table.print();
}

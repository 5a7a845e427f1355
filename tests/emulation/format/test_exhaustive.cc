// Tests FP32 inputs in every deterministic rounding mode, with the scalar kernel and every vector
// kernel of this CPU, against exact boundaries (fp32_boundaries.h): all 2^32 of them in the
// studies, one chunk of every 32 in the slow tests. LOCKSTEP_SWEEP_SLICE says which; `./dev test
// --slow` takes another one every day. Kernels that only round: on every chunk. The fused pass: on
// every 8th chunk (to nearest even: on every one). Its statistics: against the scalar kernel's on
// every 64th.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/format/float_format.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "src/core/parallel.h"
#include "tests/emulation/format/fp32_boundaries.h"

using namespace lockstep;

namespace {

constexpr int64_t kInputs = int64_t{1} << 32;
constexpr int64_t kChunkInputs = int64_t{1} << 15;  // inputs, results and expected ones stay in L2
constexpr int64_t kChunks = kInputs / kChunkInputs;
constexpr int64_t kMeasuredStride = 8, kStatisticsStride = 64;
constexpr int64_t kSlices = 32;

// The chunks first, first + stride, first + 2 * stride, ... With 256 chunks to a binade, every
// slice has 8 chunks of every exponent.
struct Sweep {
  int64_t first = 0, stride = 1;
  int64_t chunks() const { return kChunks / stride; }
};

constexpr Sweep kAllInputs;

Sweep slice_of_today() {
  const char* text = std::getenv("LOCKSTEP_SWEEP_SLICE");
  const std::string_view slice = text == nullptr ? "0" : text;
  Sweep sweep{.first = -1, .stride = kSlices};
  const auto [end, error] = std::from_chars(slice.data(), slice.data() + slice.size(), sweep.first);
  const bool is_slice = error == std::errc() && end == slice.data() + slice.size() &&
                        sweep.first >= 0 && sweep.first < kSlices;
  REQUIRE_MESSAGE(is_slice,
                  "LOCKSTEP_SWEEP_SLICE = '" << slice << "', wanted 0 to " << kSlices - 1);
  return sweep;
}

constexpr int kProvenBits = 19;  // of the named formats
constexpr int kStudiedBits = 16;

// One mode of one format.
struct Tally {
  std::atomic<int64_t> rounded{0}, measured{0}, statistics{0};  // inputs, inputs, chunks
  std::atomic<int64_t> wrong{0}, statistics_wrong{0};
  std::atomic<uint32_t> wrong_input{0};  // bits of some input with a wrong result
};

// The kernels of one format, on consecutive chunks.
class Proof {
 public:
  Proof(const Format& format, const Sweep& sweep)
      : format_(format), sweep_(sweep), boundaries_(format) {}

  void run(const std::vector<Rounding>& modes) {
    std::vector<Tally> tallies(modes.size());
    const int64_t chunks = sweep_.chunks(), inputs = chunks * kChunkInputs;
    parallel_for(chunks, [&](int64_t index) {
      const int64_t chunk = sweep_.first + index * sweep_.stride;
      Chunk data(static_cast<uint32_t>(chunk * kChunkInputs));
      for (size_t i = 0; i < modes.size(); ++i) check(index, data, modes[i], tallies[i]);
    });
    const auto sets = static_cast<int64_t>(available_kernel_sets().size());
    for (size_t i = 0; i < modes.size(); ++i) {
      const Tally& tally = tallies[i];
      const bool all_measured = modes[i] == Rounding::kNearestEven;
      INFO(format_.name << " " << to_string(modes[i]) << " input bits "
                        << tally.wrong_input.load());
      CHECK(tally.wrong.load() == 0);
      CHECK(tally.statistics_wrong.load() == 0);
      CHECK(tally.rounded.load() == sets * inputs);
      CHECK(tally.measured.load() ==
            (sets - 1) * (all_measured ? inputs : inputs / kMeasuredStride));
      CHECK(tally.statistics.load() == (sets - 1) * chunks / kStatisticsStride);
    }
  }

 private:
  struct Chunk {
    explicit Chunk(uint32_t first_bits)
        : first(first_bits), x(kChunkInputs), y(kChunkInputs), expected(kChunkInputs) {
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = std::bit_cast<float>(first + static_cast<uint32_t>(i));
      }
    }
    uint32_t first;
    std::vector<float> x, y;
    std::vector<uint32_t> expected;
  };

  // `index`: the number of the chunk in the sweep.
  void check(int64_t index, Chunk& data, Rounding mode, Tally& tally) const {
    boundaries_.fill(data.first, kChunkInputs, mode, data.expected.data());
    const QuantizeSpec spec{.format = &format_, .rounding = mode};
    const bool nearest = mode == Rounding::kNearestEven;
    const bool measured = nearest || index % kMeasuredStride == 0;
    const bool compared = index % kStatisticsStride == 0;
    TensorStats scalar, vector;
    for (const KernelSet* set : available_kernel_sets()) {
      const bool is_scalar = set == available_kernel_sets().front();
      run_kernel(*set, spec, data, nullptr, tally);
      tally.rounded += kChunkInputs;
      if (is_scalar && compared) run_kernel(*set, spec, data, &scalar, tally);
      if (is_scalar || !measured) continue;
      run_kernel(*set, spec, data, &vector, tally);
      tally.measured += static_cast<int64_t>(vector.count);
      if (!compared) continue;
      ++tally.statistics;
      tally.statistics_wrong += !same_statistics(scalar, vector);
    }
  }

  static void run_kernel(const KernelSet& set, const QuantizeSpec& spec, Chunk& data,
                         TensorStats* stats, Tally& tally) {
    std::fill(data.y.begin(), data.y.end(), 0.0f);
    set.f32.quantize(data.x.data(), data.y.data(), kChunkInputs, spec, stats);
    const size_t bytes = data.y.size() * sizeof(float);
    if (std::memcmp(data.y.data(), data.expected.data(), bytes) == 0) return;
    for (size_t i = 0; i < data.y.size(); ++i) {
      if (std::bit_cast<uint32_t>(data.y[i]) == data.expected[i]) continue;
      ++tally.wrong;
      tally.wrong_input = data.first + static_cast<uint32_t>(i);
    }
  }

  static bool same_statistics(const TensorStats& a, const TensorStats& b) {
    const ErrorStats none;
    const auto same = [&](const Statistic& row) {
      if (row.kind() == StatisticKind::kCount) return row.count(a, none) == row.count(b, none);
      return std::bit_cast<uint64_t>(row.moment(a, none)) ==
             std::bit_cast<uint64_t>(row.moment(b, none));
    };
    return std::all_of(statistics().begin(), statistics().end(), same) &&
           a.bits_hash == b.bits_hash && a.exponent_histogram == b.exponent_histogram;
  }

  const Format& format_;
  const Sweep sweep_;
  Fp32Boundaries boundaries_;
};

void prove(const std::string& name, const Sweep& sweep, const std::vector<Rounding>& modes) {
  static const bool said = [] {
    const size_t sets = available_kernel_sets().size();
    constexpr size_t kAllSets = 3;
    if (sets < kAllSets) MESSAGE("SKIPPED: " << kAllSets - sets << " kernel sets this CPU lacks");
    return true;
  }();
  (void)said;
  Proof(find_format(name), sweep).run(modes);
}

void prove_named_formats(const Sweep& sweep) {
  int proven = 0;
  for (const Format& f : formats()) {
    if (f.storage_bits() > kProvenBits) continue;
    prove(f.name, sweep, deterministic_roundings());
    ++proven;
  }
  CHECK(proven == 10);
}

void prove_suffixes(const Sweep& sweep) {
  for (const char* name : {"fp16", "bf16", "fp8_e4m3"}) {
    for (const char* suffix : {"+saturate", "+flush_in", "+flush_out", "+saturate+flush_out"}) {
      prove(name + std::string(suffix), sweep, {Rounding::kNearestEven});
    }
  }
}

}  // namespace

TEST_SUITE("slow") {
  TEST_CASE("one input of 32: every named format of 19 bits or fewer, every mode") {
    prove_named_formats(slice_of_today());
  }

  TEST_CASE("one input of 32: saturating and flushing, to nearest even") {
    prove_suffixes(slice_of_today());
  }
}

// Hours for the last one; LOCKSTEP_STUDY_FORMAT=e3m4 does one format.
TEST_SUITE("study") {
  TEST_CASE("all 2^32 inputs: every named format of 19 bits or fewer, every mode") {
    prove_named_formats(kAllInputs);
  }

  TEST_CASE("all 2^32 inputs: saturating and flushing, to nearest even") {
    prove_suffixes(kAllInputs);
  }

  TEST_CASE("all 2^32 inputs: every other e<E>m<M> of 16 bits or fewer, every mode") {
    const char* only = std::getenv("LOCKSTEP_STUDY_FORMAT");
    int proven = 0;
    for (int e = 2; e <= 8; ++e) {
      for (int m = 1; 1 + e + m <= kStudiedBits; ++m) {
        const Format& f = find_format("e" + std::to_string(e) + "m" + std::to_string(m));
        const bool named =
            std::any_of(formats().begin(), formats().end(), [&](auto& row) { return &row == &f; });
        if (named || (only != nullptr && f.name != only)) continue;
        prove(f.name, kAllInputs, deterministic_roundings());
        MESSAGE("proven: " << f.name);
        ++proven;
      }
    }
    INFO("LOCKSTEP_STUDY_FORMAT = " << (only == nullptr ? "(not set)" : only));
    CHECK(proven > 0);
  }
}

TEST_CASE("boundaries by hand: fp8_e5m2 to nearest even") {
  const Fp32Boundaries boundaries(find_format("fp8_e5m2"));
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  const auto& list = boundaries.of(Rounding::kNearestEven, false);
  // 0 up to and including 2^-17, then 2^-16 up to but not including 1.5 * 2^-16 (odd, tie up).
  CHECK(list[0].value == 0);
  CHECK(list[1].from == bits(0x1p-17f) + 1);
  CHECK(list[1].value == bits(0x1p-16f));
  CHECK(list[2].from == bits(0x1.8p-16f));
  CHECK(list.back().from == bits(61440.0f));
  CHECK(list.back().value == kFloatInfinity);
  CHECK(boundaries.of(Rounding::kUp, true).back().from == kFloatInfinity);
  // Infinity and the codes after it: NaN, with either sign.
  uint32_t results[3];
  boundaries.fill(bits(-std::numeric_limits<float>::infinity()) - 1, 3, Rounding::kUp, results);
  CHECK(results[0] == bits(-57344.0f));
  CHECK(results[1] == (kFloatInfinity | kFloatSignBit));
  CHECK(results[2] == kFloatNan);
}

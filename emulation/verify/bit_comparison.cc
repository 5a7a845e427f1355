// Batches of cases, spread over the threads.
#include "emulation/verify/bit_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "src/core/parallel.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

constexpr int64_t kBatch = 1 << 13;  // cases; a unit's operands then stay in the caches

uint32_t magnitude_mask(const Format& format) {
  return (1u << (format.storage_bits() - 1)) - 1;
}

// IEEE-like encodings: every code beyond infinity's is NaN.
bool is_nan(uint32_t bits, const Format& format) {
  return (bits & magnitude_mask(format)) > encode(std::numeric_limits<double>::infinity(), format);
}

std::string hex(uint32_t bits, const Format& format) {
  constexpr int kBitsPerDigit = 4;
  return fmt::format("0x{:0{}x}", bits, format.storage_bits() / kBitsPerDigit);
}

// The words of edge case `number`; the last field changes fastest.
class EdgeCases {
 public:
  explicit EdgeCases(const BitComparison& comparison) : products_(comparison.edges) {
    for (const auto& product : products_) {
      uint64_t size = 1;
      for (const auto& list : product) size *= list.size();
      sizes_.push_back(size);
      total_ += size;
    }
  }
  uint64_t total() const { return total_; }
  void get(uint64_t number, uint32_t* words) const {
    size_t product = 0;
    while (number >= sizes_[product]) number -= sizes_[product++];
    const auto& lists = products_[product];
    for (size_t i = lists.size(); i-- > 0;) {
      words[i] = lists[i][number % lists[i].size()];
      number /= lists[i].size();
    }
  }

 private:
  const std::vector<std::vector<std::vector<uint32_t>>>& products_;
  std::vector<uint64_t> sizes_;
  uint64_t total_ = 0;
};

std::string describe(const BitComparison& comparison, const uint32_t* words, uint32_t unit,
                     uint32_t model) {
  std::string text;
  for (size_t i = 0; i < comparison.fields.size(); ++i) {
    text += comparison.fields[i].name + "=" + hex(words[i], *comparison.fields[i].format) + " ";
  }
  return fmt::format("{}: unit {}, model {}", text.substr(0, text.size() - 1),
                     hex(unit, *comparison.result), hex(model, *comparison.result));
}

std::vector<uint32_t> with_both_signs(const std::vector<uint32_t>& magnitudes,
                                      const Format& format) {
  std::vector<uint32_t> bits = magnitudes;
  for (const uint32_t magnitude : magnitudes) bits.push_back(magnitude | ~magnitude_mask(format));
  const uint32_t all = magnitude_mask(format) << 1 | 1;
  for (uint32_t& word : bits) word &= all;
  return bits;
}

}  // namespace

CaseRandom::CaseRandom(uint64_t seed, uint64_t number) : seed_(seed), number_(number) {}

uint32_t CaseRandom::bits() {
  if (used_ == words_.size()) {
    words_ = philox4x32({static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)},
                        {static_cast<uint32_t>(number_), static_cast<uint32_t>(number_ >> 32),
                         block_++, static_cast<uint32_t>(RandomPurpose::kTest)});
    used_ = 0;
  }
  return words_[used_++];
}

uint32_t CaseRandom::below(uint32_t limit) {
  return static_cast<uint32_t>((uint64_t{bits()} * limit) >> 32);
}

UnitResult compare_bits(const BitComparison& comparison, const VerifyOptions& options) {
  const EdgeCases edges(comparison);
  UnitResult result;
  result.edge_cases = edges.total();
  result.random_cases = options.cases;
  const auto total = static_cast<int64_t>(result.cases());
  const size_t fields = comparison.fields.size();

  std::mutex mutex;
  uint64_t done = 0;
  int64_t first = total;  // number of the first mismatch
  parallel_for((total + kBatch - 1) / kBatch, [&](int64_t batch) {
    const int64_t begin = batch * kBatch, count = std::min(kBatch, total - begin);
    std::vector<uint32_t> words(fields * static_cast<size_t>(count)), one(fields);
    for (int64_t j = 0; j < count; ++j) {
      const auto number = static_cast<uint64_t>(begin + j);
      if (number < edges.total()) {
        edges.get(number, one.data());
      } else {
        CaseRandom random(options.seed, number - edges.total());
        comparison.draw(random, one.data());
      }
      for (size_t i = 0; i < fields; ++i) {
        words[i * static_cast<size_t>(count) + static_cast<size_t>(j)] = one[i];
      }
    }
    std::vector<uint32_t> unit(static_cast<size_t>(count)), model(unit);
    const CaseBatch cases{words.data(), count};
    comparison.unit(cases, unit.data());
    comparison.model(cases, model.data());

    uint64_t mismatches = 0;
    int64_t first_here = count;
    for (int64_t j = 0; j < count; ++j) {
      const auto at = static_cast<size_t>(j);
      if (unit[at] == model[at]) continue;
      if (!comparison.nan_bits_count && is_nan(unit[at], *comparison.result) &&
          is_nan(model[at], *comparison.result)) {
        continue;
      }
      ++mismatches;
      first_here = std::min(first_here, j);
    }
    const std::lock_guard lock(mutex);
    result.mismatches += mismatches;
    if (mismatches > 0 && begin + first_here < first) {
      first = begin + first_here;
      const auto at = static_cast<size_t>(first_here);
      for (size_t i = 0; i < fields; ++i) one[i] = cases.operand(static_cast<int>(i))[first_here];
      result.first_mismatch = describe(comparison, one.data(), unit[at], model[at]);
    }
    done += static_cast<uint64_t>(count);
    if (options.progress) options.progress(done, static_cast<uint64_t>(total));
  });
  return result;
}

std::vector<uint32_t> edge_values(const Format& format) {
  const auto code = [&](double x) { return static_cast<uint32_t>(encode(x, format)); };
  const uint32_t min_normal = code(format.min_normal()), one = code(1.0);
  const uint32_t max_finite = code(format.max_finite);
  const uint32_t infinity = code(std::numeric_limits<double>::infinity());
  const uint32_t binade = min_normal;  // one step of the exponent field
  const uint32_t quiet_bit = binade >> 1;
  return with_both_signs({0,
                          1,
                          2,
                          3,
                          min_normal / 2,
                          min_normal - 1,
                          min_normal,
                          min_normal + 1,
                          2 * binade - 1,
                          2 * binade,
                          3 * binade,
                          one / 2,
                          one / 2 + 1,
                          one - binade,
                          one - 1,
                          one,
                          one + 1,
                          one + quiet_bit,
                          one + binade - 1,
                          one + binade,
                          one + (infinity - one) / 2,
                          max_finite - binade,
                          max_finite - 1,
                          max_finite,
                          infinity,
                          infinity | 1,
                          infinity | quiet_bit},
                         format);
}

std::vector<uint32_t> few_edge_values(const Format& format) {
  const auto code = [&](double x) { return static_cast<uint32_t>(encode(x, format)); };
  const uint32_t min_normal = code(format.min_normal()), one = code(1.0);
  const uint32_t infinity = code(std::numeric_limits<double>::infinity());
  return with_both_signs({0, min_normal - 1, min_normal, one / 2, one, one + 1,
                          code(format.max_finite), infinity, infinity | min_normal >> 1},
                         format);
}

}  // namespace lockstep

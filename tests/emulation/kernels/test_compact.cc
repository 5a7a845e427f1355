// Compact forms, in every kernel set: all codes of FP16 and BF16, and tails of every length.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/kernels/active_kernels.h"

namespace lockstep {
namespace {

// All values of a format of 16 bits, with the one NaN of every kernel.
std::vector<float> all_values(const Format& format) {
  std::vector<float> values;
  for (uint32_t code = 0; code < 1u << 16; ++code) {
    const auto value = static_cast<float>(decode(code, format));
    values.push_back(std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value);
  }
  return values;
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

std::vector<float> there_and_back(const KernelSet& set, CompactForm form,
                                  const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint8_t> bytes(static_cast<size_t>(compact_bytes(form, count)));
  set.compact.compact(form, values.data(), count, bytes.data());
  std::vector<float> back(values.size(), -1);
  set.compact.expand(form, bytes.data(), count, back.data());
  return back;
}

}  // namespace

TEST_CASE("every value of FP16 and BF16 becomes its code, and comes back") {
  for (const KernelSet* set : available_kernel_sets()) {
    for (const char* name : {"fp16", "bf16"}) {
      CAPTURE(set->name);
      CAPTURE(name);
      const Format& format = find_format(name);
      const CompactForm form = compact_form(format).value();
      const std::vector<float> values = all_values(format);
      const std::vector<float> back = there_and_back(*set, form, values);
      std::vector<uint16_t> codes(values.size());
      set->compact.compact(form, values.data(), static_cast<int64_t>(values.size()),
                           reinterpret_cast<uint8_t*>(codes.data()));
      int64_t wrong = 0, wrong_code = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        wrong += !same_bits(back[i], values[i]);
        wrong_code += !std::isnan(values[i]) && codes[i] != i;
      }
      CHECK(wrong == 0);
      CHECK(wrong_code == 0);
    }
  }
}

TEST_CASE("a form holds what its format contains") {
  CHECK(compact_form(find_format("bf16")) == CompactForm::kTopHalf);
  CHECK(compact_form(find_format("fp8_e4m3")) == CompactForm::kTopHalf);
  CHECK(compact_form(find_format("fp8_e5m2")) == CompactForm::kTopHalf);
  CHECK(compact_form(find_format("fp16")) == CompactForm::kFp16);
  CHECK(compact_form(find_format("fp16+saturate")) == CompactForm::kFp16);
  for (const char* wide : {"fp32", "tf32", "e6m9", "e8m8"}) {
    CAPTURE(wide);
    CHECK_FALSE(compact_form(find_format(wide)).has_value());
  }
}

TEST_CASE("arrays of any length come back, and nothing after them is written") {
  for (const KernelSet* set : available_kernel_sets()) {
    CAPTURE(set->name);
    for (const int64_t count : {0, 1, 7, 8, 9, 15, 16, 17, 33, 16384, 16391, 40003}) {
      CAPTURE(count);
      std::vector<float> values(static_cast<size_t>(count));
      std::vector<int32_t> mask(values.size()), ones(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(i % 251) - 100;
        mask[i] = i % 3 == 0 ? static_cast<int32_t>(i) - 6 : 0;
        ones[i] = mask[i] != 0;
      }
      for (const CompactForm form : {CompactForm::kFp16, CompactForm::kTopHalf}) {
        CHECK(there_and_back(*set, form, values) == values);
      }
      constexpr uint8_t kUntouched = 0xa5;
      const auto bytes = static_cast<size_t>(compact_bytes(CompactForm::kBit, count));
      std::vector<uint8_t> bits(bytes + 1, kUntouched);
      set->compact.compact_mask(mask.data(), count, bits.data());
      CHECK(bits.back() == kUntouched);
      std::vector<int32_t> back(mask.size() + 1, -1);
      set->compact.expand_mask(bits.data(), count, back.data());
      CHECK(back.back() == -1);
      back.pop_back();
      CHECK(back == ones);
    }
  }
}

}  // namespace lockstep

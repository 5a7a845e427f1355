// Numbers that follow from a site's exponent histogram, by hand.
#include "analysis/monitor/live_site.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr size_t kOne = 127;  // the bin of [1, 2)
constexpr size_t kLastBin = 255;

Site place(Role role, const char* op = "Linear", bool scaled = false) {
  Site site = {};
  site.layer = "fc";
  site.op = op;
  site.role = role;
  site.scaled = scaled;
  return site;
}

// 4 zeros, one FP32 subnormal, 8 values in [1, 2), 3 in [4, 8), 2 that are not finite.
SiteRecord counted_values() {
  SiteRecord record;
  record.measured = true;
  record.stats.count = 18;
  record.stats.source_zero = 4;
  record.stats.abs_max = 7;
  auto& bins = record.stats.exponent_histogram;
  bins[0] = 5;
  bins[kOne] = 8;
  bins[kOne + 2] = 3;
  bins[kLastBin] = 2;
  return record;
}

}  // namespace

TEST_CASE("a sample without the loss scale: bins shift down, zeros and infinities stay") {
  const Site site = place(Role::kGradWeight, "Linear", /*scaled=*/true);
  SiteRecord record = counted_values();
  CHECK(unscaled_sample(site, record).histogram == record.stats.exponent_histogram);
  record.scale = 1024;
  const RangeSample sample = unscaled_sample(site, record);
  CHECK(sample.layer == "fc");
  CHECK(sample.scaled);
  CHECK(sample.zeros == 4);
  CHECK(sample.histogram[0] == 5);
  CHECK(sample.histogram[kOne - 10] == 8);
  CHECK(sample.histogram[kOne - 8] == 3);
  CHECK(sample.histogram[kOne] == 0);
  CHECK(sample.histogram[kLastBin] == 2);
  CHECK(sample.max_exponent() == -8);
  record.scale = 1536;  // its exponent, rounded down
  CHECK(unscaled_sample(site, record).histogram == sample.histogram);
}

TEST_CASE("a sample: bins that leave the range stay at its ends, a broken scale shifts nothing") {
  const Site site = place(Role::kGradWeight);
  SiteRecord record = counted_values();
  record.scale = 0x1p-127;  // 2^127 times the values
  CHECK(unscaled_sample(site, record).histogram[kLastBin - 1] == 11);
  record.stats.exponent_histogram[1] = 6;
  record.scale = 2;
  CHECK(unscaled_sample(site, record).histogram[1] == 6);
  for (const double scale : {0.0, -2.0, HUGE_VAL, std::nan("")}) {
    CAPTURE(scale);
    record.scale = scale;
    CHECK(unscaled_sample(site, record).histogram == record.stats.exponent_histogram);
  }
}

TEST_CASE("headroom: octaves to the format's largest number") {
  const Site site = place(Role::kActivation);
  SiteRecord record = counted_values();
  const Format* fp16 = find_known_format("fp16");
  REQUIRE(fp16 != nullptr);
  record.stats.abs_max = 65504.0 / 8;
  CHECK(LiveSite{site, record, fp16}.headroom() == 3.0);
  record.stats.abs_max = 65504;
  CHECK(LiveSite{site, record, fp16}.headroom() == 0.0);
  CHECK_FALSE(LiveSite{site, record, nullptr}.headroom());
  for (const double largest : {0.0, HUGE_VAL}) {
    record.stats.abs_max = largest;
    CHECK_FALSE(LiveSite{site, record, fp16}.headroom());
  }
  CHECK(find_known_format("int7") == nullptr);
}

TEST_CASE("the share of the nonzero values in octaves above that of a limit") {
  const Site site = place(Role::kActivation);
  const SiteRecord record = counted_values();
  const LiveSite live{site, record, nullptr};
  CHECK(live.nonfinite() == 2);
  // Finite and not zero: 12. In the octaves above [1, 2): 3; above [4, 8): none.
  CHECK(live.share_above(1) == 3.0 / 12);
  CHECK(live.share_above(3.9) == 3.0 / 12);
  CHECK(live.share_above(4) == 0);
  CHECK(live.share_above(0.5) == 11.0 / 12);
  SiteRecord zeros;
  zeros.stats.count = zeros.stats.source_zero = zeros.stats.exponent_histogram[0] = 9;
  CHECK(LiveSite{site, zeros, nullptr}.share_above(1) == 0);
}

TEST_CASE("the share that becomes zero where the largest value fills a format") {
  const Format &e4m3 = find_format("fp8_e4m3"), &e5m2 = find_format("fp8_e5m2");
  CHECK(scale_to_fit(1, e4m3) == 8);  // 448
  CHECK(scale_to_fit(448, e4m3) == 0);
  CHECK(scale_to_fit(449, e4m3) == -1);
  CHECK(scale_to_fit(1, e5m2) == 15);  // 57344
  const Site site = place(Role::kActivation);
  SiteRecord record;
  record.measured = true;
  record.stats.count = 20;
  record.stats.source_zero = 4;
  record.stats.abs_max = 1;
  auto& bins = record.stats.exponent_histogram;
  bins[0] = 4;
  bins[kOne] = 9;
  bins[kOne - 18] = 5;  // times 2^8: [2^-10, 2^-9), at least half the smallest number of fp8_e4m3
  bins[kOne - 19] = 2;  // below that half
  const LiveSite live{site, record, nullptr};
  CHECK(live.zeroed_share(e4m3) == 2.0 / 16);
  CHECK(live.zeroed_share(e5m2) == 0);  // times 2^15: from 2^-4 on
  // A loss scale changes nothing: the largest value fills the format with or without it.
  record.scale = 4096;
  CHECK(live.zeroed_share(e4m3) == 2.0 / 16);
  for (const double largest : {0.0, HUGE_VAL, std::numeric_limits<double>::quiet_NaN()}) {
    record.stats.abs_max = largest;
    CHECK(live.zeroed_share(e4m3) == 0);
  }
}

TEST_CASE("which sites are gradients, and which a module casts to FP8") {
  const Format *fp8 = find_known_format("fp8_e4m3"), *bf16 = find_known_format("bf16");
  CHECK(is_gradient(Role::kGradWeight));
  CHECK(is_gradient(Role::kGradActivation));
  CHECK_FALSE(is_gradient(Role::kWeight));
  CHECK_FALSE(is_gradient(Role::kActivation));
  CHECK(is_quantised(place(Role::kActivation), fp8));
  CHECK_FALSE(is_quantised(place(Role::kActivation), bf16));
  CHECK_FALSE(is_quantised(place(Role::kActivation), nullptr));
  CHECK(is_quantised(place(Role::kActivation, "Float8Linear"), bf16));
  CHECK(is_quantised(place(Role::kActivation, "TE_FP8Linear"), nullptr));
}

}  // namespace lockstep

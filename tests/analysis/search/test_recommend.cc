// From ranges to a policy: the text that `recommend` writes is read back by the policy reader.
#include "analysis/search/recommend.h"

#include <doctest/doctest.h>

#include <cmath>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/policy/find_policy.h"
#include "tests/analysis/recorded_run.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

using testing::has;
using testing::record;
using testing::small_run;
using testing::TempDir;

// Joins the lines of wrapped comments.
std::string unwrapped(std::string text) {
  for (size_t at; (at = text.find("\n# ")) != std::string::npos;) text.replace(at, 3, " ");
  return text;
}

// One value of each exponent given, in one layer.
RangeSample gradient(const std::string& layer, std::initializer_list<int> exponents) {
  constexpr int kBias = 127;
  RangeSample sample{
      .layer = layer, .label = layer + " gradient", .role = Role::kGradWeight, .scaled = true};
  for (const int e : exponents) sample.histogram[static_cast<size_t>(e + kBias)] = 1;
  return sample;
}

TEST_CASE("a recommendation is a policy that a run accepts") {
  const TempDir dir;
  const RunFile run = record(dir.file("run.h5"), small_run());
  const Recommendation found = recommend(run, "fp16");
  CHECK(found.ranges.layers.size() >= 2);
  const std::string path = dir.file("policy.toml");
  write_text_file_atomically(path, found.candidate.toml);
  const Policy policy = find_policy(path);
  CHECK(policy.loss_scale.kind == kGradScaler);
  CHECK(found.ranges.scales.contains(std::ilogb(policy.loss_scale.init_scale)));
  RunOptions options = small_run();
  options.lanes = {"fp32", path};
  const RunFile verified = record(dir.file("verify.h5"), options);
  for (const ScalerRecord& s : verified.scalers(1)) CHECK_FALSE(s.skipped);
}

TEST_CASE("layers with a reason become fp32 rules") {
  RangeTable ranges;
  ranges.format = &find_format("fp16");
  ranges.scales = {.lo = 3, .hi = 9};
  ranges.scale_exponent = 7;
  ranges.layers.resize(2);
  ranges.layers[0].layer = "fc1";
  ranges.layers[0].has_gradients = true;
  ranges.layers[1].layer = "fc2";
  ranges.layers[1].reason = "reaches 2^17";
  const Policy policy = parse_policy(candidate_of(ranges, "a test").toml, "p.toml");
  REQUIRE(policy.rules.size() == 1);
  CHECK(policy.rules[0].layer == "fc2");
  CHECK(policy.rules[0].compute == &find_format("fp32"));
  CHECK(policy.loss_scale.init_scale == 512);  // the largest that fits
}

TEST_CASE("the policy's comments show the evidence, the interval and both ends") {
  // FP16 keeps 2^-24 and more, below 2^16 with one octave of headroom: k of at least 6 for `low`
  // (2^-30, with 4^-3 of the energy), at most 10 for `high`.
  const RangeTable ranges =
      make_range_table({gradient("low", {-30, -27}), gradient("high", {4})}, find_format("fp16"));
  REQUIRE(ranges.scales.lo == 6);
  REQUIRE(ranges.scales.hi == 10);
  const std::string text = unwrapped(candidate_of(ranges, "hand-made histograms").toml);
  CHECK(has(text, "Evidence: hand-made histograms."));
  CHECK(has(text,
            "Feasible for all layers below: 2^6 .. 2^10; low needs the lower end; high "
            "sets the upper end."));
  CHECK(has(text, "init_scale = 1024.0\n"));
  CHECK(has(text, "extends = \"torch-autocast-fp16:"));
}

TEST_CASE("a dynamic scale needs room to move, and starts where it fits") {
  const Policy& base = find_policy("torch-autocast-fp16");
  const auto choose = [&](int lo, int hi) {
    RangeTable ranges;
    ranges.scales = {.lo = lo, .hi = hi};
    ranges.scale_exponent = choose_scale(ranges.scales);
    ranges.layers.resize(1);
    ranges.layers[0].has_gradients = true;
    return choose_scaler(ranges, base);
  };
  CHECK(choose(3, 20).dynamic);
  CHECK(choose(3, 20).start == 65536);
  CHECK(choose(18, 24).start == std::ldexp(1.0, 18));
  CHECK(choose(-9, -4).start == std::ldexp(1.0, -4));  // a scale below one
  CHECK(choose(5, 6).dynamic);
  CHECK_FALSE(choose(5, 5).dynamic);
  CHECK(choose(5, 5).start == 32);
}

TEST_CASE("a layer that overflows is kept in fp32, the others decide the scale") {
  RangeSample activation{
      .layer = "wide", .label = "wide output", .role = Role::kActivation, .scaled = false};
  activation.histogram[127 + 17] = 1;  // 2^17
  const RangeTable ranges =
      make_range_table({activation, gradient("fine", {-10})}, find_format("fp16"));
  const Policy policy = parse_policy(candidate_of(ranges, "a test").toml, "p.toml");
  REQUIRE(policy.rules.size() == 1);
  CHECK(policy.rules[0].layer == "wide");
}

TEST_CASE("gradients taken for noise are listed") {
  RangeTable ranges;
  ranges.format = &find_format("fp16");
  ranges.ignored = {"conv bias", "fc bias"};
  const std::string text = unwrapped(candidate_of(ranges, "a test").toml);
  CHECK(has(text,
            "Ignored as rounding noise (largest value below 2^-20 of the layer's largest "
            "gradient): conv bias, fc bias."));
}

TEST_CASE("a preset without a scaler keeps none where no scale is needed") {
  RangeTable ranges;
  ranges.format = &find_format("bf16");
  const std::string text = candidate_of(ranges, "a test").toml;
  CHECK_FALSE(has(text, "[loss_scale]"));
  CHECK(parse_policy(text, "p.toml").loss_scale.kind == "none");
  ranges.scale_exponent = 3;
  ranges.layers.resize(1);
  ranges.layers[0].has_gradients = true;
  const Policy scaled = parse_policy(candidate_of(ranges, "a test").toml, "p.toml");
  CHECK(scaled.loss_scale.init_scale == 8);
}

TEST_CASE("layer names are quoted as TOML requires") {
  RangeTable ranges;
  ranges.format = &find_format("fp16");
  ranges.layers.resize(1);
  ranges.layers[0].layer = "a\"b\\c\nd'e";
  ranges.layers[0].reason = "a test";
  const Policy policy = parse_policy(candidate_of(ranges, "a test").toml, "p.toml");
  CHECK(policy.rules.at(0).layer == "a\"b\\c\nd'e");
}

TEST_CASE("a format without a preset to start from is refused with a hint") {
  const TempDir dir;
  const RunFile run = record(dir.file("run.h5"), small_run());
  try {
    recommend(run, "bf61");
    FAIL("accepted");
  } catch (const InputError& error) {
    CHECK(has(error.what(), "--formats bf61"));
    CHECK(has(error.what(), "bf16"));
  }
}

}  // namespace
}  // namespace lockstep

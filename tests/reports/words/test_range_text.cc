// What follows from a range table, in words: the first screen and the section have the same ones.
#include "reports/words/range_text.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "reports/run/section.h"
#include "tests/reports/run/hand_made_report.h"

namespace lockstep {
namespace {

// `kept` of `layers` layers do not fit fp16.
RangeTable table_of(size_t layers, size_t kept) {
  RangeTable table;
  table.format = &find_format("fp16");
  for (size_t i = 0; i < layers; ++i) {
    LayerRange& layer = table.layers.emplace_back();
    layer.layer = "fc" + std::to_string(i);
    layer.has_gradients = true;
    if (i < kept) layer.reason = "too large";
  }
  table.scales = {.lo = -3, .hi = 14};
  table.lo_layer = "fc8";
  table.hi_layer = "fc9";
  table.scale_exponent = 12;
  return table;
}

TEST_CASE("layers to keep are counted and named, the first four of many") {
  CHECK(kept_layers_sentence(table_of(5, 0)) ==
        "All 5 layers may use fp16 under autocast, by their range.");
  CHECK(
      kept_layers_sentence(table_of(5, 1)) ==
      "Keep 1 of 5 layers in fp32 under autocast, by their range: fc0. The other 4 may use fp16.");
  CHECK(kept_layers_sentence(table_of(9, 6)) ==
        "Keep 6 of 9 layers in fp32 under autocast, by their range: fc0, fc1, fc2, fc3 and 2 more. "
        "The other 3 may "
        "use fp16.");
  CHECK(kept_layers_sentence(table_of(5, 5)) ==
        "None of 5 layers fits fp16 under autocast, by their range.");
}

TEST_CASE("functions outside of modules are no layers, unless there is nothing else") {
  RangeTable table = table_of(5, 1);
  LayerRange& function = table.layers.emplace_back();
  function.layer = "matmul";
  function.is_function = true;
  const auto text_of = [&] { return range_text(table); };
  CHECK(
      kept_layers_sentence(table) ==
      "Keep 1 of 5 layers in fp32 under autocast, by their range: fc0. The other 4 may use fp16.");
  CHECK(text_of().find("functions outside of modules (matmul)") != std::string::npos);
  CHECK(text_of().find("matmul (function)") == std::string::npos);
  table.layers.back().reason = "too large";
  CHECK(kept_layers_sentence(table).ends_with(
      "The other 4 may use fp16. Outside of all modules, keep in fp32, too: matmul."));
  CHECK(text_of().find("matmul (function) stays in fp32: too large.") != std::string::npos);
  table.layers.front().reason = "";
  CHECK(kept_layers_sentence(table) ==
        "All 5 layers may use fp16 under autocast, by their range. Outside of all modules, keep in "
        "fp32: matmul.");
  table.layers.erase(table.layers.begin(), table.layers.end() - 1);
  CHECK(kept_layers_sentence(table) == "None of 1 layer fits fp16 under autocast, by their range.");
  CHECK(text_of().find("matmul stays in fp32: too large.") != std::string::npos);
}

TEST_CASE("the loss scale to set stands first; ends that nothing sets are left out") {
  RangeTable table = table_of(9, 1);
  CHECK(
      loss_scale_sentence(table) ==
      "Set a static loss scale of 2^12 for fp16, or let a dynamic one find its own: 2^-3 (fc8) to "
      "2^14 (fc9) fit, with 1 octave to spare.");
  table.scales.lo = kMinScaleExponent;
  CHECK(
      loss_scale_sentence(table) ==
      "Set a static loss scale of 2^12 for fp16, or let a dynamic one find its own: all scales up "
      "to 2^14 (fc9) fit, with 1 octave to spare.");
  table.scales = {.lo = 5, .hi = kMaxScaleExponent};
  CHECK(
      loss_scale_sentence(table) ==
      "Set a static loss scale of 2^12 for fp16, or let a dynamic one find its own: 2^5 (fc8) and "
      "more fit, with 1 octave to spare.");
  table.scales = {};
  CHECK(loss_scale_sentence(table) == "fp16 needs no loss scale.");
  CHECK(loss_scale_sentence(table_of(5, 5)) == "");
  for (LayerRange& layer : table.layers) layer.has_gradients = false;  // inference
  CHECK(loss_scale_sentence(table) == "");
}

std::string text_of(const AdvisedReport& report, std::string_view name) {
  const auto section = std::ranges::find(sections(), name, &Section::name);
  std::string text;
  for (const Block& block : section->write(report)) {
    if (const auto* p = std::get_if<Paragraph>(&block)) text += p->text + "\n";
  }
  return text;
}

TEST_CASE("the first screen names the layers to keep and the loss scale, unless recommend did") {
  Report report = testing::hand_made();
  report.ranges = {table_of(5, 2)};
  const std::string kept = kept_layers_sentence(report.ranges[0]);
  const std::string scale = loss_scale_sentence(report.ranges[0]);
  for (const char* section : {"verdict", "scales"}) {
    CAPTURE(section);
    CHECK(text_of(report, section).find(kept) != std::string::npos);
    CHECK(text_of(report, section).find(scale) != std::string::npos);
  }
  CHECK(text_of(report, "verdict").find("One seed rules out") != std::string::npos);
  const AdvisedReport advised = {report, {paragraph("Keep fc0 in fp32.")}, {}};
  CHECK(text_of(advised, "verdict").find(kept) == std::string::npos);
  CHECK(text_of(advised, "verdict").find("One seed rules out") == std::string::npos);
}

TEST_CASE("a lane's main finding is stated once, in the verdict") {
  const Report report = testing::hand_made();
  const std::string sentence = "its result reaches 1.1e5";
  CHECK(text_of(report, "verdict").find(sentence) != std::string::npos);
  const std::string findings = text_of(report, "findings");
  CHECK(findings.find(sentence) == std::string::npos);
  CHECK(
      findings.find("- overflow, step 39: fc1 linear (model.py:41), see the verdict. Then: fc1.") !=
      std::string::npos);
  CHECK(findings.find("- underflow, step 0..38. ") != std::string::npos);
}

}  // namespace
}  // namespace lockstep

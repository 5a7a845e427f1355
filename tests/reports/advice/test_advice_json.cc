// `recommend --json` with every key.
#include <doctest/doctest.h>

#include <string>

#include "reports/advice/advice_text.h"
#include "tests/reports/golden_file.h"

namespace lockstep {
namespace {

// An answer that has everything: a chosen candidate with a layer in FP32 and a scale, and a proof.
Advice full_advice() {
  Trial plain, kept;
  plain.candidate.lane = "torch-autocast-fp16";
  plain.candidate.format = kept.candidate.format = "fp16";
  kept.candidate.lane = "fp16-1.toml";
  kept.candidate.fp32 = {{"fc", "overflows"}};
  kept.candidate.scale = {.scales = true, .dynamic = true, .start = 1024};
  kept.candidate.toml = "name = \"x\"\n";
  Advice advice;
  advice.answer = Advice::Answer::kExceptions;
  advice.tried = {plain, kept};
  advice.chosen = kept;
  advice.tried[1].candidate.narrow = "fp8";
  advice.tried[1].candidate.not_narrow = {{"head", "n is 10"}};
  advice.tried[1].candidate.tf32 = true;
  advice.tried[1].candidate.memory = {"state-bf16"};
  RangeTable ranges;
  ranges.format = &find_format("fp16");
  LayerRange& layer = ranges.layers.emplace_back();
  layer.layer = "fc";
  layer.has_gradients = true;
  layer.unscaled_margin = 3;
  layer.reason = "overflows";
  advice.ranges = {ranges};
  advice.network.layers = {"fc", "head"};
  advice.gpu = &gpus().front();
  advice.fp32_cost.seconds = 1;
  advice.narrow = {{.format = "fp8", .passed = kept}, {.format = "nvfp4", .why_not = "no unit"}};
  advice.memory = {{"state-bf16", kept, std::nullopt}};
  advice.frontier = {{.format = "fp8", .layers = 1, .cost = 1, .score = 2, .lane = "x"}};
  advice.sensitivity.layers = {{.layer = "fc", .format = "fp8", .measured = MeasuredSensitivity{}}};
  advice.sensitivity.is_measured = true;
  advice.sensitivity.roles = {{.layer = "fc", .format = "fp8", .measured = MeasuredSensitivity{}}};
  advice.sensitivity.noise = {{.weight = "fc.weight", .layer = "fc", .why_assumed = "too few"}};
  return advice;
}

AdviceFacts full_facts() {
  AdviceFacts facts;
  facts.model = "lenet";
  facts.no_proof = "none";
  facts.proof = Proof();
  return facts;
}

TEST_CASE("the advice as JSON that has every key is the golden one") {
  const std::string json = advice_json(full_advice(), full_facts());
  CHECK(json == testing::golden_text("advice.json", json));
}

}  // namespace
}  // namespace lockstep

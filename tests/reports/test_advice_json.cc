// Every key of `recommend --json` has its row in docs/advice-json.md, and the other way round.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "reports/advice_text.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "tests/support/folders.h"

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

bool is_format(const std::string& key) {
  return key == "fp16" || key == "bf16";
}

void add_keys(const nlohmann::json& json, const std::string& path, std::set<std::string>& keys) {
  if (json.is_array()) {
    for (const auto& item : json) add_keys(item, path + "[]", keys);
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      const std::string name = is_format(key) ? "FORMAT" : key;
      const std::string here = path.empty() ? name : path + "." + name;
      if (!is_format(key)) keys.insert(here);
      add_keys(value, here, keys);
    }
  }
}

// The first cells of the table's rows.
std::set<std::string> documented_keys() {
  const std::string start = "| `";
  std::set<std::string> keys;
  const std::string page =
      read_text_file(std::string(testing::kSourceFolder) + "/docs/advice-json.md");
  for (const std::string& line : split(page, '\n')) {
    if (!line.starts_with(start)) continue;
    keys.insert(line.substr(start.size(), line.find('`', start.size()) - start.size()));
  }
  return keys;
}

TEST_CASE("every key of the advice as JSON is documented") {
  std::set<std::string> written;
  add_keys(nlohmann::json::parse(advice_json(full_advice(), full_facts())), "", written);
  const std::set<std::string> documented = documented_keys();
  CHECK(written.size() > 30);
  for (const std::string& key : written) {
    CAPTURE(key);
    CHECK(documented.contains(key));
  }
  for (const std::string& key : documented) {
    CAPTURE(key);
    CHECK(written.contains(key));
  }
}

}  // namespace
}  // namespace lockstep

#include "src/record/options_json.h"

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json to_object(const RunOptions& o) {
  return {
      {"model", o.model},
      {"sizes", o.sizes},
      {"data", o.data},
      {"lanes", o.lanes},
      {"steps", o.steps},
      {"batch", o.batch},
      {"optimizer",
       {{"name", o.optimizer.name},
        {"lr", o.optimizer.lr},
        {"momentum", o.optimizer.momentum},
        {"beta1", o.optimizer.beta1},
        {"beta2", o.optimizer.beta2},
        {"eps", o.optimizer.eps},
        {"weight_decay", o.optimizer.weight_decay}}},
      {"mode", o.mode == LaneMode::kFree ? "free" : "synced"},
      {"eval_every", o.eval_every},
      {"histogram_every", o.histogram_every},
      {"checkpoint_every", o.checkpoint_every},
      {"seed", o.seed},
  };
}

}  // namespace

std::string options_to_json(const RunOptions& options) {
  return to_object(options).dump();
}

RunOptions options_from_json(std::string_view json) {
  const Json j = Json::parse(json);
  RunOptions o;
  j.at("model").get_to(o.model);
  j.at("sizes").get_to(o.sizes);
  j.at("data").get_to(o.data);
  j.at("lanes").get_to(o.lanes);
  j.at("steps").get_to(o.steps);
  j.at("batch").get_to(o.batch);
  const Json& optimizer = j.at("optimizer");
  optimizer.at("name").get_to(o.optimizer.name);
  optimizer.at("lr").get_to(o.optimizer.lr);
  optimizer.at("momentum").get_to(o.optimizer.momentum);
  optimizer.at("beta1").get_to(o.optimizer.beta1);
  optimizer.at("beta2").get_to(o.optimizer.beta2);
  optimizer.at("eps").get_to(o.optimizer.eps);
  optimizer.at("weight_decay").get_to(o.optimizer.weight_decay);
  o.mode = j.at("mode") == "synced" ? LaneMode::kSynced : LaneMode::kFree;
  j.at("eval_every").get_to(o.eval_every);
  j.at("histogram_every").get_to(o.histogram_every);
  j.at("checkpoint_every").get_to(o.checkpoint_every);
  j.at("seed").get_to(o.seed);
  return o;
}

std::vector<std::string> option_differences(const RunOptions& file, const RunOptions& now) {
  const Json before = to_object(file).flatten(), after = to_object(now).flatten();
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& key) {
    const std::string x = before.contains(key) ? before[key].dump() : "nothing";
    const std::string y = after.contains(key) ? after[key].dump() : "nothing";
    // "/optimizer/lr" -> "optimizer/lr"
    if (x != y) differences.push_back(key.substr(1) + ": " + x + " in the file, " + y + " now");
  };
  for (const auto& [key, value] : before.items()) compare(key);
  for (const auto& [key, value] : after.items()) {
    if (!before.contains(key)) compare(key);
  }
  return differences;
}

}  // namespace lockstep

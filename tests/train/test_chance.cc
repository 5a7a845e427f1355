// The losses of constant predictors, which know only how often each answer comes, on the models'
// default data: CHANCE in tests/integration/study/learning.py, whose limits are below them.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "src/data/sources.h"
#include "src/models/model.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

constexpr int64_t kExamples = 512;

Batch examples_of(std::string_view name) {
  const Model& model = find_model(name);
  const auto data =
      open_data_set(model.default_data, data_request(model, complete_sizes(model, {}), 1));
  std::vector<int64_t> indices(kExamples);
  const int64_t apart = data->train_count() / kExamples;
  for (int64_t i = 0; i < kExamples; ++i) indices[static_cast<size_t>(i)] = i * apart;
  return data->gather(indices);
}

// -sum p log p of the labels' frequencies: no constant distribution has a lower cross entropy.
double class_entropy(const Batch& batch) {
  std::map<int32_t, int64_t> counts;
  int64_t judged = 0;
  for (const int32_t label : batch.at("labels").as<int32_t>()) {
    if (label == kNoLabel) continue;
    ++counts[label];
    ++judged;
  }
  double entropy = 0;
  for (const auto& [label, count] : counts) {
    const double p = static_cast<double>(count) / static_cast<double>(judged);
    entropy -= p * std::log(p);
  }
  return entropy;
}

// The loss of predicting no offset from any anchor.
double smooth_l1_of_zero(const Batch& batch) {
  const auto boxes = batch.at("boxes").as<float>();
  double sum = 0;
  for (const float x : boxes) sum += std::fabs(x) < 1 ? 0.5 * x * x : std::fabs(x) - 0.5;
  return sum / static_cast<double>(boxes.size());
}

// Half the squared distance from the mean image, per example; it needs no divergence.
double half_variance(const Batch& batch) {
  const auto images = batch.at("images").as<float>();
  const size_t pixels = images.size() / kExamples;
  double sum = 0;
  for (size_t i = 0; i < pixels; ++i) {
    double mean = 0, squares = 0;
    for (size_t n = 0; n < kExamples; ++n) mean += images[n * pixels + i] / double(kExamples);
    for (size_t n = 0; n < kExamples; ++n) squares += std::pow(images[n * pixels + i] - mean, 2);
    sum += squares / double(kExamples);
  }
  return sum / 2;
}

double chance_of(const std::string& model) {
  const Batch batch = examples_of(model);
  if (model == "vae") return half_variance(batch);
  return class_entropy(batch) + (model == "detector" ? smooth_l1_of_zero(batch) : 0);
}

}  // namespace

TEST_CASE("the losses of constant predictors, as learning.py has them") {
  const std::map<std::string, double> levels = {
      {"resnet20", 2.287}, {"unet", 0.911}, {"detector", 0.207}, {"vae", 303.8},
      {"vit", 2.287},      {"gpt", 2.946},  {"bert", 2.920},     {"lstm", 2.946}};
  for (const auto& [model, level] : levels) {
    CAPTURE(model);
    CHECK(chance_of(model) == doctest::Approx(level).epsilon(0.01));
  }
}

// The models' data other than digits: scenes, anchors, text, noise.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "src/core/error.h"
#include "src/data/anchors.h"
#include "src/data/dataset.h"
#include "src/data/noise.h"
#include "src/data/sources.h"

namespace lockstep {
namespace {

std::vector<int64_t> first_examples(int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i);
  return indices;
}

TEST_CASE("anchors: places, overlap and the encoding, by hand") {
  const auto anchors = make_anchors();
  CHECK(anchors[0].x == 1.0 / 16);
  CHECK(anchors[7].x == 15.0 / 16);
  CHECK(anchors[8].y == 3.0 / 16);
  CHECK(anchors[64].width == 0.6);
  const Box unit = {0.5, 0.5, 1, 1}, left = {0.25, 0.5, 0.5, 1};
  CHECK(overlap(unit, unit) == 1);
  CHECK(overlap(unit, left) == 0.5);
  CHECK(overlap(left, {0.75, 0.5, 0.5, 1}) == 0);
  const auto code = encode_box({0.6, 0.5, 1, 0.5}, unit);
  CHECK(code[0] == doctest::Approx(1));  // 0.1 / 1 / 0.1
  CHECK(code[1] == 0);
  CHECK(code[2] == 0);
  CHECK(code[3] == doctest::Approx(std::log(0.5) / 0.2));
}

TEST_CASE("anchors: every object has one, and none has a worse object") {
  const std::vector<Box> boxes = {{0.5, 0.5, 0.3, 0.3}, {0.2, 0.2, 0.05, 0.05}};
  const std::vector<int32_t> labels = {3, 5};
  const AnchorTargets targets = match_anchors(boxes, labels);
  std::set<int32_t> seen(targets.label.begin(), targets.label.end());
  CHECK(seen == std::set<int32_t>{0, 3, 5});
  const auto anchors = make_anchors();
  for (size_t a = 0; a < anchors.size(); ++a) {
    if (targets.label[a] == 0) continue;
    const size_t object = targets.label[a] == 3 ? 0 : 1;
    CHECK(targets.offset[a] == encode_box(boxes[object], anchors[a]));
  }
}

TEST_CASE(
    "shapes: one batch per task, labels in range, every class occurs, pure in (seed, index)") {
  struct Row {
    Task task;
    Shape labels;
    int64_t classes;
  };
  constexpr int64_t kExamples = 200;
  const std::vector<Row> rows = {{Task::kImages, {kExamples}, 10},
                                 {Task::kSegmentation, {kExamples, 32, 32}, 6},
                                 {Task::kDetection, {kExamples * kAnchorCount}, 6}};
  for (const Row& row : rows) {
    CAPTURE(to_string(row.task));
    const auto data = open_data_set("shapes", {.task = row.task, .seed = 3});
    CHECK(data->class_count() == row.classes);
    const Batch batch = data->gather(first_examples(kExamples));
    CHECK(batch.at("images").shape() == Shape{kExamples, 3, 32, 32});
    CHECK(batch.at("labels").shape() == row.labels);
    std::set<int32_t> seen;
    for (const int32_t label : batch.at("labels").as<int32_t>()) seen.insert(label);
    CHECK(static_cast<int64_t>(seen.size()) == row.classes);
    CHECK(*seen.begin() == 0);
    CHECK(*seen.rbegin() == row.classes - 1);
    const Batch again = data->gather(first_examples(3));
    const auto some = again.at("images").as<float>(), all = batch.at("images").as<float>();
    CHECK(std::equal(some.begin(), some.end(), all.begin()));
    const auto other = open_data_set("shapes", {.task = row.task, .seed = 4});
    CHECK_FALSE(other->gather(first_examples(3)).at("images").same_bits(again.at("images")));
    double sum = 0, sum_sq = 0;
    for (const double x : all) sum += x, sum_sq += x * x;
    const double n = static_cast<double>(all.size());
    CHECK(std::abs(sum / n) < 1.5);  // roughly normalised
    CHECK(sum_sq / n < 4);
  }
}

TEST_CASE("text: windows, successors, vocabulary and held-out part, by hand") {
  const std::string path =
      (std::filesystem::temp_directory_path() / "lockstep_text_windows.txt").string();
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>('a' + i % 3);
  std::ofstream(path) << text;
  const auto data = open_data_set("text:" + path, {.task = Task::kNextToken, .context = 4});
  CHECK(data->class_count() == 3);
  CHECK(data->train_count() == 90 - 4);
  CHECK(data->held_out_count() == 2);  // (10 - 1) / 4
  const Batch batch = data->gather(std::vector<int64_t>{1, 86, 87});
  const auto tokens = batch.at("tokens").as<int32_t>(), labels = batch.at("labels").as<int32_t>();
  CHECK(std::vector<int32_t>(tokens.begin(), tokens.end()) ==
        std::vector<int32_t>{1, 2, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1});
  CHECK(std::vector<int32_t>(labels.begin(), labels.end()) ==
        std::vector<int32_t>{2, 0, 1, 2, 1, 2, 0, 1, 2, 0, 1, 2});
  CHECK_THROWS_WITH_AS(
      open_data_set("text:" + path, (DataRequest{.task = Task::kNextToken, .context = 10})),
      doctest::Contains("window of 11"), InputError);
  CHECK_THROWS_AS(
      open_data_set("text:no_such_file", (DataRequest{.task = Task::kNextToken, .context = 4})),
      InputError);
  CHECK_THROWS_WITH_AS(open_data_set("text:" + path, {}), doctest::Contains("labelled images"),
                       InputError);
}

TEST_CASE(
    "masked text: 15 % of the places, of those 80/10/10, within 5 sigma; drawn anew each time") {
  const auto data = open_data_set("grammar", {.task = Task::kMaskedToken, .context = 100});
  const auto plain = open_data_set("grammar", {.task = Task::kNextToken, .context = 100});
  CHECK(data->class_count() == plain->class_count() + 1);
  const int32_t mask_token = static_cast<int32_t>(data->class_count()) - 1;
  const Batch batch = data->gather(first_examples(1000), 7);
  const Batch original = plain->gather(first_examples(1000));
  const auto shown = batch.at("tokens").as<int32_t>(), label = batch.at("labels").as<int32_t>();
  const auto truth = original.at("tokens").as<int32_t>();
  double predicted = 0, masked = 0, kept = 0;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (label[i] == kNoLabel) {
      CHECK(shown[i] == truth[i]);
      continue;
    }
    CHECK(label[i] == truth[i]);
    ++predicted;
    masked += shown[i] == mask_token;
    kept += shown[i] == truth[i];
  }
  const auto within = [](double count, double n, double p) {
    return std::abs(count - n * p) <= 5 * std::sqrt(n * p * (1 - p));
  };
  CHECK(within(predicted, static_cast<double>(shown.size()), 0.15));
  CHECK(within(masked, predicted, 0.8));
  // A random character is the original one with probability 1 / mask_token.
  CHECK(within(kept, predicted, 0.1 + 0.1 / mask_token));
  CHECK_FALSE(data->gather(first_examples(10), 8)
                  .at("labels")
                  .same_bits(data->gather(first_examples(10), 7).at("labels")));
}

TEST_CASE("masked text: even a short window predicts something") {
  const auto data = open_data_set("grammar", {.task = Task::kMaskedToken, .context = 2});
  for (uint64_t draw = 0; draw < 3; ++draw) {
    const Batch batch = data->gather(first_examples(500), draw);
    const auto label = batch.at("labels").as<int32_t>();
    for (size_t i = 0; i < label.size(); i += 2) {
      CHECK((label[i] != kNoLabel || label[i + 1] != kNoLabel));
    }
  }
}

TEST_CASE("noise: standard normal moments within 5 sigma, new numbers in every step") {
  Graph graph;
  graph.inputs.push_back({"in0", "noise", {{400, 50}, ElementType::kFloat}});
  Batch one, two, again;
  add_noise(graph, 1, 0, one);
  add_noise(graph, 1, 1, two);
  add_noise(graph, 1, 0, again);
  CHECK(one.at("noise").same_bits(again.at("noise")));
  CHECK_FALSE(one.at("noise").same_bits(two.at("noise")));
  double m1 = 0, m2 = 0, m4 = 0;
  const auto x = one.at("noise").as<float>();
  for (const double v : x) m1 += v, m2 += v * v, m4 += v * v * v * v;
  const double n = static_cast<double>(x.size());
  CHECK(std::abs(m1 / n) <= 5 / std::sqrt(n));
  CHECK(std::abs(m2 / n - 1) <= 5 * std::sqrt(2 / n));   // Var(x^2) = 2
  CHECK(std::abs(m4 / n - 3) <= 5 * std::sqrt(96 / n));  // Var(x^4) = 105 - 9
}

}  // namespace
}  // namespace lockstep

// The mean of an evaluation over batches with different numbers of labels, by hand.
#include "src/train/evaluate.h"

#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/train/lane/lane.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

constexpr int64_t kContext = 2, kTokens = 2, kClasses = 2;

// A table of logits, one row per token.
Graph build_table(const ModelShape& shape, bool) {
  GraphBuilder b("table");
  const Value tokens = b.input("tokens", {{shape.batch, kContext}, ElementType::kInt});
  const Value labels = b.input("labels", {{shape.batch * kContext}, ElementType::kInt});
  const Value rows = b.embedding("table", tokens, kTokens, kClasses);
  const Value logits = b.reshape("table", rows, {shape.batch * kContext, kClasses});
  b.name_output("logits", logits);
  b.name_output("labels", labels);
  b.set_loss(b.op("cross_entropy", {logits, labels}, {}, "loss"));
  return b.finish();
}

// Three held-out examples of two places, token 0 everywhere except in the last one.
class ThreeExamples : public DataSet {
 public:
  explicit ThreeExamples(std::vector<int32_t> labels) : labels_(std::move(labels)) {}
  std::string describe() const override { return "three examples"; }
  int64_t train_count() const override { return 1; }
  int64_t held_out_count() const override { return 3; }
  Shape image_shape() const override { return {}; }
  int64_t class_count() const override { return kClasses; }
  Batch gather(std::span<const int64_t> indices, uint64_t) const override {
    std::vector<int32_t> tokens, labels;
    for (const int64_t index : indices) {
      for (int64_t place = 0; place < kContext; ++place) {
        tokens.push_back(index == 3 ? 1 : 0);
        labels.push_back(labels_.at(static_cast<size_t>((index - 1) * kContext + place)));
      }
    }
    const int64_t count = static_cast<int64_t>(indices.size());
    Batch batch;
    batch.emplace("tokens", Tensor::from<int32_t>({count, kContext}, tokens));
    batch.emplace("labels", Tensor::from<int32_t>({count * kContext}, labels));
    return batch;
  }

 private:
  std::vector<int32_t> labels_;
};

EvaluationRecord evaluate(const std::vector<int32_t>& labels, int64_t batch, int64_t most = 3) {
  const Model model{.name = "table",
                    .help = "",
                    .source = "",
                    .default_data = "",
                    .task = Task::kMaskedToken,
                    .build = &build_table};
  const ThreeExamples data(labels);
  RunOptions options = small_run({"fp32", "fp64"}, 1);
  options.batch = batch;
  const Graph graph = differentiate(build_table({batch, {}, kClasses}, true));
  const SiteTable sites = make_sites(graph, 1);
  const LaneContext context = make_lane_context(graph, sites, options);
  // Token 0: class 1 is three times as likely as class 0; token 1: both are as likely.
  const float log3 = std::log(3.0f);
  const std::map<std::string, Tensor> initial = {
      {"table.weight", Tensor::from<float>({kTokens, kClasses}, {0, log3, 0, 0})}};
  std::vector<std::unique_ptr<Lane>> lanes;
  for (const std::string& name : options.lanes) {
    lanes.push_back(std::make_unique<Lane>(context, describe_lane(name), initial));
  }
  Evaluator evaluator(model, {}, data, options.optimizer, batch, options.seed);
  return evaluator.evaluate(lanes, {true, true}, /*steps_done=*/0, most);
}

constexpr int32_t kNone = kNoLabel;

}  // namespace

TEST_CASE("evaluation: the mean is over labels, whatever their batches") {
  // Labels 1 and 0 of token 0, then label 0 of token 1: -log 3/4, -log 1/4 and -log 1/2.
  const double mean = (std::log(4.0 / 3) + std::log(4.0) + std::log(2.0)) / 3;
  for (const int64_t batch : {1, 2, 3}) {
    CAPTURE(batch);
    const EvaluationRecord record = evaluate({1, 0, kNone, kNone, kNone, 0}, batch);
    CHECK(record.example_count == 3);
    for (size_t lane = 0; lane < 2; ++lane) {
      CHECK(record.loss[lane] == doctest::Approx(mean).epsilon(1e-6));  // weights are FP32
      CHECK(record.accuracy[lane] == doctest::Approx(2.0 / 3));  // the first of two equal ones
    }
  }
}

TEST_CASE("evaluation: over the first examples, or all if there are fewer") {
  const std::vector<int32_t> labels = {1, 0, kNone, 0, kNone, 0};
  const double right = std::log(4.0 / 3), wrong = std::log(4.0);  // label 1 and 0 of token 0
  for (const int64_t batch : {1, 2, 3}) {
    CAPTURE(batch);
    const EvaluationRecord one = evaluate(labels, batch, 1), two = evaluate(labels, batch, 2);
    CHECK(one.example_count == 1);
    CHECK(one.loss[0] == doctest::Approx((right + wrong) / 2).epsilon(1e-6));
    CHECK(one.accuracy[0] == doctest::Approx(0.5));
    CHECK(two.example_count == 2);
    CHECK(two.loss[0] == doctest::Approx((right + 2 * wrong) / 3).epsilon(1e-6));
    CHECK(two.accuracy[0] == doctest::Approx(1.0 / 3));
    CHECK(evaluate(labels, batch, 100).example_count == 3);
  }
}

TEST_CASE("evaluation: without labels there is no mean") {
  const EvaluationRecord record = evaluate(std::vector<int32_t>(6, kNone), 2);
  CHECK(std::isnan(record.loss[0]));
  CHECK(std::isnan(record.accuracy[0]));
}

// Evaluation: the same step graph with batch_norm in evaluation mode; only its forward nodes run.
// The whole graph is lowered, so that policy rules about backward sites still match.
#include "src/train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "emulation/kernels/active_kernels.h"
#include "src/data/noise.h"
#include "src/execute/engines.h"
#include "src/graph/autodiff.h"
#include "src/policy/find_policy.h"
#include "src/train/lane/lane_threads.h"
#include "src/update/parameter_groups.h"

namespace lockstep {
namespace {

struct Score {
  int64_t correct = 0, judged = 0;
  void merge(const Score& other) {
    correct += other.correct;
    judged += other.judged;
  }
};

// logits (N,C) or (N,C,...), labels (N) or (N,...).
template <typename T>
Score score_of(const Tensor& logits, const Tensor& labels) {
  const Shape& shape = logits.shape();
  const int64_t classes = shape.at(1), inner = element_count(shape) / (shape[0] * classes);
  const T* x = logits.as<T>().data();
  const auto label = labels.as<int32_t>();
  Score score;
  for (int64_t i = 0; i < labels.size(); ++i) {
    const int32_t wanted = label[static_cast<size_t>(i)];
    if (wanted == kNoLabel) continue;
    ++score.judged;
    const T* first = x + i / inner * classes * inner + i % inner;
    int64_t best = 0;
    bool is_nan = false;
    for (int64_t c = 0; c < classes; ++c) {
      is_nan |= std::isnan(first[c * inner]);
      if (first[c * inner] > first[best * inner]) best = c;
    }
    score.correct += !is_nan && best == wanted;
  }
  return score;
}

}  // namespace

Evaluator::Evaluator(const Model& model, const ModelSizes& sizes, const DataSet& data,
                     const OptimizerSpec& spec, int64_t batch, uint64_t seed,
                     std::optional<double> batch_norm_eps, bool in_fp32)
    : model_(model),
      sizes_(sizes),
      data_(data),
      spec_(spec),
      batch_(batch),
      seed_(seed),
      batch_norm_eps_(batch_norm_eps),
      in_fp32_(in_fp32) {}

Evaluator::BatchRunners& Evaluator::runners_for(int64_t batch, size_t lane_count) {
  std::unique_ptr<BatchRunners>& runners = runners_[batch];
  if (runners == nullptr) {
    runners = std::make_unique<BatchRunners>();
    Graph forward = model_.build({batch, data_.image_shape(), data_.class_count(), sizes_},
                                 /*training=*/false);
    if (batch_norm_eps_) set_batch_norm_eps(forward, *batch_norm_eps_);
    runners->graph = differentiate(forward);
    runners->sites = make_sites(runners->graph, state_count(spec_));
    runners->of_lanes.resize(lane_count);
  }
  return *runners;
}

EvaluationRecord Evaluator::evaluate(const std::vector<std::unique_ptr<Lane>>& lanes,
                                     const std::vector<bool>& alive, int64_t steps_done,
                                     int64_t most) {
  const Policy fp32_policy = find_policy(kReferenceLane);
  EvaluationRecord record;
  record.steps_done = steps_done;
  record.example_count = std::min(most, data_.held_out_count());
  std::vector<double> loss_sum(lanes.size(), 0), weight_sum(lanes.size(), 0);
  std::vector<Score> scores(lanes.size());
  int64_t batch_index = 0;
  for (int64_t begin = 0; begin < record.example_count; begin += batch_, ++batch_index) {
    const int64_t size = std::min(batch_, record.example_count - begin);
    std::vector<int64_t> indices(static_cast<size_t>(size));
    std::iota(indices.begin(), indices.end(), data_.train_count() + begin);
    // Every evaluation sees the same masks and the same noise.
    const uint64_t draw = static_cast<uint64_t>(batch_index);
    Batch batch = data_.gather(indices, draw);
    BatchRunners& runners = runners_for(size, lanes.size());
    add_noise(runners.graph, seed_, draw, batch);
    for_lanes(0, lanes.size(), lanes_share_threads(lanes), [&](size_t l) {
      if (!alive[l]) return;
      const LaneDescription& lane = lanes[l]->description();
      const Container container = container_of(lane);
      // The truth lane keeps its own policy.
      const bool in_fp32 = in_fp32_ && container != Container::kF64;
      const Policy& policy = in_fp32 ? fp32_policy : lane.policy;
      auto& runner = runners.of_lanes[l];
      if (runner == nullptr) {
        runner = std::make_unique<StepRunner>(
            runners.graph, runners.sites, policy,
            ExecutionRules{.container = container,
                           .kernels = in_fp32 ? active_kernels : find_engine(lane.engine).kernels,
                           .forward_only = true});
        lanes[l]->bind_state(*runner, in_fp32);
      }
      // Every batch of every evaluation has its own key, and none is a training step's.
      constexpr int kBatchShift = 32;
      const ExecutionKey key{seed_, policy.stream,
                             static_cast<uint64_t>(steps_done) |
                                 static_cast<uint64_t>(batch_index + 1) << kBatchShift};
      runner->begin({.key = key, .loss_scales = {1}}, batch);
      runner->run_forward();
      const double value = runner->loss();
      // A batch's loss is a mean over its labels or, without labels, over its examples.
      int64_t weight = size;
      const auto logits = runners.graph.outputs.find("logits");
      if (logits != runners.graph.outputs.end()) {
        const Tensor& values = runner->values().of(logits->second);
        const Tensor& labels = runner->values().of(runners.graph.outputs.at("labels"));
        const Score score = container == Container::kF64 ? score_of<double>(values, labels)
                                                         : score_of<float>(values, labels);
        scores[l].merge(score);
        weight = score.judged;
      }
      if (weight == 0) return;  // a mean over no labels is NaN
      loss_sum[l] += value * static_cast<double>(weight);
      weight_sum[l] += static_cast<double>(weight);
    });
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (size_t l = 0; l < lanes.size(); ++l) {
    record.loss.push_back(alive[l] ? loss_sum[l] / weight_sum[l] : nan);
    const bool judged = alive[l] && scores[l].judged > 0;
    record.accuracy.push_back(judged ? static_cast<double>(scores[l].correct) /
                                           static_cast<double>(scores[l].judged)
                                     : nan);
  }
  return record;
}

}  // namespace lockstep

// Loss and accuracy of each lane on held-out examples: forward passes in evaluation mode, under
// each lane's policy, without statistics. Knows nothing of training.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/data/dataset.h"
#include "src/models/model.h"
#include "src/train/lane/lane.h"

namespace lockstep {

class Evaluator {
 public:
  // All arguments must outlive the evaluator. `batch`: examples per forward pass. `batch_norm_eps`:
  // of every batch_norm; absent: the model's own. `in_fp32`: every lane's weights (its masters, if
  // it has them) run under the FP32 policy instead of the lane's own.
  Evaluator(const Model& model, const ModelSizes& sizes, const DataSet& data,
            const OptimizerSpec& spec, int64_t batch, uint64_t seed,
            std::optional<double> batch_norm_eps = {}, bool in_fp32 = false);

  // Mean loss and accuracy per lane over the labels of the first `most` held-out examples, or of
  // all if there are fewer. The loss of a model that does not classify is a mean over the examples;
  // its accuracy is NaN. Both are NaN where `alive` is false or nothing is labelled. The class of
  // an example (of a pixel, a character, an anchor) is the first largest logit. An example with a
  // NaN logit counts as wrong; one labelled kNoLabel does not count. `most` should follow from
  // steps_done and not from the steps asked for: a continued run then has the same evaluations.
  // Requires: most >= 0.
  EvaluationRecord evaluate(const std::vector<std::unique_ptr<Lane>>& lanes,
                            const std::vector<bool>& alive, int64_t steps_done, int64_t most);

 private:
  // For one batch size: the graph and each lane's runner, made when a batch of that size comes.
  struct BatchRunners {
    Graph graph;
    SiteTable sites;
    std::vector<std::unique_ptr<StepRunner>> of_lanes;
  };
  BatchRunners& runners_for(int64_t batch, size_t lane_count);

  const Model& model_;
  ModelSizes sizes_;
  const DataSet& data_;
  OptimizerSpec spec_;
  int64_t batch_;
  uint64_t seed_;
  std::optional<double> batch_norm_eps_;
  bool in_fp32_;
  std::map<int64_t, std::unique_ptr<BatchRunners>> runners_;  // by batch size
};

}  // namespace lockstep

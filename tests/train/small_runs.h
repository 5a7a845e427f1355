// Shared by the tests of whole runs: a small network's options, an observer that keeps everything,
// and comparisons bit by bit.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "emulation/stats/tensor_stats.h"
#include "src/train/lockstep.h"
#include "tests/policy/write_policy.h"

namespace lockstep {

// Keeps everything it receives.
class Recorder : public Observer {
 public:
  void on_start(const RunDescription& d) override { description = &d; }
  void on_step(const StepRecord& record) override { steps.push_back(record); }
  void on_evaluation(const EvaluationRecord& record) override { evaluations.push_back(record); }
  void on_checkpoint(const RunStateView& state) override { states.push_back(copy_of(state)); }
  void on_finish() override { ++finished; }

  const RunDescription* description = nullptr;
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  std::vector<RunState> states;
  int finished = 0;
};

inline RunOptions small_run(std::vector<std::string> lanes, int64_t steps) {
  RunOptions options;
  options.model = "mlp";
  options.data = "synthetic:200";
  options.lanes = std::move(lanes);
  options.steps = steps;
  options.batch = 8;
  return options;
}

// Runs to the end and returns the final state.
inline RunState run(LockstepRun& run, Recorder& recorder) {
  run.add_observer(&recorder);
  const std::atomic<bool> stop{false};
  REQUIRE(run.run(stop));
  return run.state();
}
inline RunState run(const RunOptions& options, Recorder& recorder) {
  LockstepRun lockstep_run(options);
  return run(lockstep_run, recorder);
}

inline const Tensor& tensor_of(const RunState& state, size_t lane, const std::string& name) {
  return state.lanes.at(lane).tensors.at(name);
}

inline bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// Compares all numbers of two steps except seconds; returns how many sites were compared.
inline int check_same_step(const StepRecord& a, const StepRecord& b) {
  int measured = 0;
  REQUIRE(a.step == b.step);
  REQUIRE(a.lanes.size() == b.lanes.size());
  for (size_t l = 0; l < a.lanes.size(); ++l) {
    const LaneStep &x = a.lanes[l], &y = b.lanes[l];
    CHECK(same(x.loss, y.loss));
    CHECK(x.scalers[0].scale == y.scalers[0].scale);
    CHECK(x.scalers[0].culprit_site == y.scalers[0].culprit_site);
    REQUIRE(x.sites.size() == y.sites.size());
    for (size_t s = 0; s < x.sites.size(); ++s) {
      REQUIRE(x.sites[s].measured == y.sites[s].measured);
      if (!x.sites[s].measured) continue;
      const TensorStats &p = x.sites[s].stats, &q = y.sites[s].stats;
      const ErrorStats &e = x.sites[s].error, &f = y.sites[s].error;
      bool equal = x.sites[s].scale == y.sites[s].scale;
      for (const Statistic& row : statistics()) {
        equal &= row.kind() == StatisticKind::kCount ? row.count(p, e) == row.count(q, f)
                                                     : same(row.moment(p, e), row.moment(q, f));
      }
      equal &= p.bits_hash == q.bits_hash && p.exponent_histogram == q.exponent_histogram;
      if (!equal) {
        CAPTURE(a.step);
        CAPTURE(l);
        CAPTURE(s);
        FAIL_CHECK("records differ");
      }
      ++measured;
    }
    for (size_t s = 0; s < x.sites.size(); ++s) {
      CHECK(x.sites[s].update.measured == y.sites[s].update.measured);
      CHECK(x.sites[s].update.stats.stagnant == y.sites[s].update.stats.stagnant);
      CHECK(same(x.sites[s].update.stats.update_sq, y.sites[s].update.stats.update_sq));
    }
  }
  return measured;
}

inline void check_same_state(const RunState& a, const RunState& b) {
  REQUIRE(a.lanes.size() == b.lanes.size());
  for (size_t l = 0; l < a.lanes.size(); ++l) {
    CHECK(a.lanes[l].scalers == b.lanes[l].scalers);
    CHECK(a.lanes[l].optimizer_steps == b.lanes[l].optimizer_steps);
    CHECK(a.lanes[l].died_of == b.lanes[l].died_of);
    REQUIRE(a.lanes[l].tensors.size() == b.lanes[l].tensors.size());
    for (const auto& [name, tensor] : a.lanes[l].tensors) {
      CAPTURE(name);
      CHECK(tensor.same_bits(b.lanes[l].tensors.at(name)));
    }
  }
}

const std::vector<std::string> kAllLanes = {
    "fp32", "torch-autocast-fp16", "torch-autocast-bf16", "tf32", "pure-fp16", "fp64", "twin"};

}  // namespace lockstep

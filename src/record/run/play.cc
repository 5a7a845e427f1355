// See play.h.
#include "src/record/run/play.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lockstep {
namespace {

// The evaluations of some lanes, in order.
class Evaluations {
 public:
  Evaluations(const RunFile& run, std::span<const int> lanes)
      : lane_count_(run.lanes().size()), lanes_(lanes) {
    for (const int lane : lanes) of_lane_.push_back(run.evaluations(lane));
    next_.resize(of_lane_.size());
  }

  // Tells those that followed so many steps.
  void tell(int64_t steps_done, std::span<Observer* const> observers) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    EvaluationRecord record{.steps_done = steps_done,
                            .loss = std::vector<double>(lane_count_, kNone),
                            .accuracy = std::vector<double>(lane_count_, kNone)};
    bool is_any = false;
    for (size_t i = 0; i < of_lane_.size(); ++i) {
      if (next_[i] == of_lane_[i].size() || of_lane_[i][next_[i]].steps_done != steps_done)
        continue;
      const Evaluation& one = of_lane_[i][next_[i]++];
      const auto lane = static_cast<size_t>(lanes_[i]);
      record.loss[lane] = one.loss;
      record.accuracy[lane] = one.accuracy;
      record.example_count = one.example_count;
      is_any = true;
    }
    for (Observer* observer : observers) {
      if (is_any) observer->on_evaluation(record);
    }
  }

 private:
  size_t lane_count_;
  std::span<const int> lanes_;
  std::vector<std::vector<Evaluation>> of_lane_;  // as lanes_
  std::vector<size_t> next_;
};

}  // namespace

void play(const RunFile& run, std::span<const int> lanes, std::span<Observer* const> observers,
          bool histograms) {
  Evaluations evaluations(run, lanes);
  evaluations.tell(0, observers);
  StepRecord record;
  record.lanes.resize(run.lanes().size());
  for (int64_t step = 0; step < run.steps(); ++step) {
    record.step = step;
    record.is_measured = run.is_measured(step);
    for (const int lane : lanes) {
      run.read_step(lane, step, histograms, record.lanes[static_cast<size_t>(lane)]);
    }
    for (Observer* observer : observers) observer->on_step(record);
    evaluations.tell(step + 1, observers);
  }
  for (Observer* observer : observers) observer->on_finish();
}

std::vector<int> every_lane(const RunFile& run) {
  std::vector<int> lanes(run.lanes().size());
  std::iota(lanes.begin(), lanes.end(), 0);
  return lanes;
}

void play(const RunFile& run, Observer& observer) {
  Observer* const observers[] = {&observer};
  play(run, every_lane(run), observers);
}

void play_reference(const RunFile& run, Observer& observer) {
  const int lanes[] = {kReferenceIndex};
  Observer* const observers[] = {&observer};
  play(run, lanes, observers);
}

}  // namespace lockstep

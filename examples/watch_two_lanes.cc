// Task: train two lanes from my own program and look at every step myself.
// An observer receives plain records: here, the share of gradient values that FP16 turned to zero.
#include <fmt/format.h>

#include <atomic>

#include "src/train/lockstep.h"

namespace {

using namespace lockstep;

class GradientUnderflow : public Observer {
 public:
  void on_start(const RunDescription& run) override { sites_ = run.sites; }
  void on_step(const StepRecord& record) override {
    const LaneStep& lane = record.lanes.at(1);  // 0 is always the FP32 reference
    uint64_t nonzero = 0, lost = 0;
    for (const Site& site : sites_->sites) {
      if (site.role != Role::kGradActivation || site.point != Point::kOutput) continue;
      const TensorStats& stats = lane.sites.at(static_cast<size_t>(site.id)).stats;
      nonzero += stats.count - stats.source_zero;
      lost += stats.to_zero;
    }
    fmt::print("step {}: loss {:.4f}, {:.2f} % of the nonzero activation gradients lost\n",
               record.step, lane.loss,
               nonzero == 0 ? 0 : 100 * static_cast<double>(lost) / static_cast<double>(nonzero));
    ++steps;
  }
  int steps = 0;

 private:
  const SiteTable* sites_ = nullptr;
};

}  // namespace

int main() {
  RunOptions options;
  options.model = "mlp";
  options.data = "synthetic:500";
  options.lanes = {"pure-fp16"};
  options.steps = 5;
  LockstepRun run(options);
  GradientUnderflow watch;
  run.add_observer(&watch);
  const std::atomic<bool> stop = false;
  run.run(stop);
  return watch.steps == 5 ? 0 : 1;  // run as a test
}

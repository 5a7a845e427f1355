// Task: train two lanes from my own program and look at every step myself.
// An observer receives plain records. This one prints the share of gradients whose sum underflowed:
// one of its steps was nonzero before it was rounded to FP16, and zero after.
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
    uint64_t sums = 0, underflowed = 0;
    for (const Site& site : sites_->sites) {
      const bool is_gradient = site.op.find("_backward_") != std::string::npos;
      if (!is_gradient || site.point != Point::kAccumulator) continue;
      const TensorStats& stats = lane.sites.at(static_cast<size_t>(site.id)).stats;
      sums += stats.count;
      underflowed += stats.to_zero;
    }
    fmt::print("step {}: loss {:.4f}, {:.2f} % of the gradients had a sum that underflowed\n",
               record.step, lane.loss,
               100 * static_cast<double>(underflowed) / static_cast<double>(sums));
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

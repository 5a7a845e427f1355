#include "src/jobs/executor.h"

#include <optional>

#include "src/core/error.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/run/run_writer.h"
#include "src/train/lockstep.h"
#include "src/train/observer_thread.h"

namespace lockstep {
namespace {

// A job is run again rather than continued, so it needs no checkpoints, which hold all weights.
class WithoutCheckpoints : public Observer {
 public:
  explicit WithoutCheckpoints(Observer& to) : to_(to) {}
  void on_start(const RunDescription& run) override { to_.on_start(run); }
  void on_step(const StepRecord& step) override { to_.on_step(step); }
  void on_evaluation(const EvaluationRecord& evaluation) override { to_.on_evaluation(evaluation); }
  void on_finish() override { to_.on_finish(); }

 private:
  Observer& to_;
};

}  // namespace

bool run_jobs_here(const std::vector<Job>& jobs, const JobStore& store,
                   const std::string& command_line, const JobWatch& watch,
                   const std::atomic<bool>& stop) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    if (store.has(job)) continue;
    if (stop) return false;
    store.forget(job);
    if (watch.begin) watch.begin(job, i, jobs.size());
    std::optional<LockstepRun> made;
    try {
      made.emplace(job.options, read_capture(job.options.model, CaptureUse::kReplay));
    } catch (const InputError& error) {
      throw InputError(job.label, error.problems());
    }
    LockstepRun& run = *made;
    if (watch.describe) watch.describe(run.description());
    RunFileWriter writer(store.path_of(job), command_line, /*overwrite=*/true);
    WithoutCheckpoints records(writer);
    ObserverThread writing({&records});
    run.add_observer(&writing);
    if (!run.run(stop)) return false;
  }
  return true;
}

}  // namespace lockstep

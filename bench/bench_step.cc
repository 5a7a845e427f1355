// Measures how long a training step takes.
//   An FP32 step without measurements, against PyTorch's step of the same model
//   (bench/torch_step.py, a separate process on the same CPUs that takes turns; LOCKSTEP_PYTHON
//   names an interpreter with torch). All of PyTorch's settings are tried; the row names the
//   fastest, which it uses.
//   FP32 and three emulated lanes with all statistics and errors, against four plain FP32 steps
// Only Lockstep's steps include drawing the batch. Memory is the peak above the resident memory
// before the first step: activations, gradients and optimizer states on both sides.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/ratio.h"
#include "src/data/sources.h"
#include "src/models/model.h"
#include "src/train/lockstep.h"

namespace lockstep {
namespace {

struct Case {
  std::string model, size;
  int64_t batch;
  std::map<std::string, double> sizes;
  double lanes_target;  // of FP32 + 3 lanes against four plain steps
};
const Case kCases[] = {
    {"mlp", "784-512-512-10, batch 128", 128, {{"hidden1", 512}, {"hidden2", 512}}, 0},
    {"resnet20", "3x32x32, batch 64", 64, {}, 1.3},
    {"gpt", "4 layers, width 256, context 128, batch 8", 8, {}, 1.15},
};

// PyTorch's settings; the fastest one differs by model and by machine.
struct TorchSetting {
  const char* name;
  bool channels_last, short_spin;  // images NHWC; OpenMP's idle threads sleep soon
};
const TorchSetting kTorchSettings[] = {
    {"PyTorch", false, false},
    {"PyTorch, GOMP_SPINCOUNT=1000", false, true},
    {"PyTorch, channels_last", true, false},
    {"PyTorch, channels_last, GOMP_SPINCOUNT=1000", true, true},
};

int64_t class_count(const Case& of) {
  const Model& model = find_model(of.model);
  const ModelSizes sizes = complete_sizes(model, of.sizes);
  return open_data_set(model.default_data, data_request(model, sizes, 1))->class_count();
}

// A PyTorch process that runs a step for every line it receives.
class TorchPeer {
 public:
  TorchPeer(const Case& of, const bench::Options& options, const TorchSetting& setting) {
    const char* python = std::getenv("LOCKSTEP_PYTHON");
    if (python == nullptr) return;
    int to_child[2], from_child[2];
    if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0) return;
    const std::string classes = std::to_string(class_count(of));
    child_ = fork();
    if (child_ == 0) {
      dup2(to_child[0], STDIN_FILENO);
      dup2(from_child[1], STDOUT_FILENO);
      pin(options.cpus);
      if (setting.short_spin) setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/1);
      const std::string script = std::string(LOCKSTEP_SOURCE_DIR) + "/bench/torch_step.py";
      execl(python, python, script.c_str(), of.model.c_str(), std::to_string(of.batch).c_str(),
            std::to_string(options.threads).c_str(), classes.c_str(),
            setting.channels_last ? "channels_last" : "contiguous", static_cast<char*>(nullptr));
      _exit(1);
    }
    close(to_child[0]), close(from_child[1]);
    out_ = fdopen(to_child[1], "w");
    in_ = fdopen(from_child[0], "r");
  }
  ~TorchPeer() {
    if (out_ != nullptr) std::fclose(out_);
    if (in_ != nullptr) std::fclose(in_);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  // Negative if there is no answer.
  double ask(const char* line) {
    double answer = -1;
    if (out_ == nullptr) return answer;
    std::fprintf(out_, "%s\n", line);
    std::fflush(out_);
    return std::fscanf(in_, "%lf", &answer) == 1 ? answer : -1;
  }

 private:
  // Pins it to the CPUs of this process, one OpenMP thread on each.
  static void pin(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    std::string places;
    for (const int cpu : cpus) {
      CPU_SET(cpu, &set);
      places += fmt::format("{}{{{}}}", places.empty() ? "" : ",", cpu);
    }
    sched_setaffinity(0, sizeof set, &set);
    setenv("OMP_PROC_BIND", "true", /*overwrite=*/1);
    setenv("OMP_PLACES", places.c_str(), /*overwrite=*/1);
  }

  pid_t child_ = -1;
  FILE *out_ = nullptr, *in_ = nullptr;
};

// The fastest setting, from a few steps of each; null without PyTorch.
const TorchSetting* tune_torch(const Case& of, const bench::Options& options) {
  constexpr int kWarmUp = 3, kSteps = 7;
  const bool has_images = of.model == "resnet20";  // mlp flattens its images first
  const TorchSetting* best = nullptr;
  double least = 0;
  for (const TorchSetting& setting : kTorchSettings) {
    if (setting.channels_last && !has_images) continue;
    if (setting.short_spin && options.threads == 1) continue;
    TorchPeer peer(of, options, setting);
    std::vector<double> times;
    for (int i = 0; i < kWarmUp + kSteps; ++i) {
      const double seconds = peer.ask("step");
      if (seconds < 0) return nullptr;
      if (i >= kWarmUp) times.push_back(seconds);
    }
    std::nth_element(times.begin(), times.begin() + kSteps / 2, times.end());
    fmt::print(stderr, "{}, {}: {:.1f} ms\n", of.model, setting.name, 1e3 * times[kSteps / 2]);
    if (best == nullptr || times[kSteps / 2] < least) best = &setting, least = times[kSteps / 2];
  }
  return best;
}

// A line of /proc/self/status, in bytes.
double status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == name + ":" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// The peak resident set since construction, above what was resident then.
class PeakMemory {
 public:
  PeakMemory() {
    malloc_trim(0);  // memory that earlier rows left in the allocator must not count
    std::ofstream("/proc/self/clear_refs") << "5";
    before_ = status_bytes("VmRSS");
  }
  double bytes() const { return status_bytes("VmHWM") - before_; }

 private:
  double before_ = 0;
};

// A run that is executed step by step.
class Steps {
 public:
  Steps(const Case& of, std::vector<std::string> lanes, bool measure) {
    RunOptions options;
    options.model = of.model;
    options.sizes = of.sizes;
    options.batch = of.batch;
    options.lanes = std::move(lanes);
    options.steps = int64_t{1} << 40;
    options.optimizer.values = {{"lr", 0.01}};
    options.measuring.on = measure;
    run_ = std::make_unique<LockstepRun>(options);
  }
  void step() { run_->run(stop_); }

 private:
  std::unique_ptr<LockstepRun> run_;
  const std::atomic<bool> stop_{true};  // after each step
};

// False without PyTorch to compare with.
bool measure_step(const Case& of, const bench::Options& options, bench::Table& table) {
  bench::Row step{.work = of.model + " FP32 step",
                  .size = of.size,
                  .unit = bench::Unit::kMilliseconds,
                  .peer = "PyTorch",
                  .target = options.threads == 1 ? 1.0 : 1.2};
  if (!table.wants(step)) return true;
  const TorchSetting* setting = tune_torch(of, options);
  if (setting == nullptr) {
    fmt::print(stderr, "{}: PyTorch skipped, LOCKSTEP_PYTHON has no torch\n", of.model);
    return false;
  }
  step.peer = setting->name;
  TorchPeer torch(of, options, *setting);
  torch.ask("step");  // starts it before this process reads its own memory
  Steps plain(of, {"fp32"}, /*measure=*/false);
  const PeakMemory memory;
  table.measure_timed(
      step, [&] { return torch.ask("step"); }, [&] { plain.step(); });
  table.add({.work = of.model + " peak memory of steps",
             .size = of.size,
             .unit = bench::Unit::kMegabytes,
             .peer = "PyTorch"},
            torch.ask("memory"), memory.bytes());
  return true;
}

void measure_lanes(const Case& of, bench::Table& table) {
  const bench::Row lanes{.work = of.model + " FP32 + 3 lanes, all statistics",
                         .size = of.size,
                         .unit = bench::Unit::kMilliseconds,
                         .peer = "4 FP32 steps",
                         .target = of.lanes_target};
  if (!table.wants(lanes)) return;
  Steps plain(of, {"fp32"}, /*measure=*/false);
  Steps all(of, {"fp32", "torch-autocast-fp16", "torch-autocast-bf16", "tf32"}, /*measure=*/true);
  double plain_bytes = 0, all_bytes = 0;
  {
    const PeakMemory memory;
    plain.step();
    plain_bytes = memory.bytes();
  }
  {
    const PeakMemory memory;
    all.step();
    all_bytes = memory.bytes();
  }
  table.measure(
      lanes,
      [&] {
        for (int i = 0; i < 4; ++i) plain.step();
      },
      [&] { all.step(); });
  table.add({.work = of.model + " peak memory of FP32 + 3 lanes",
             .size = of.size,
             .unit = bench::Unit::kMegabytes,
             .peer = "FP32 alone"},
            plain_bytes, all_bytes);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  constexpr int kNoTorch = 3;
  const bench::Options options = bench::start(argc, argv);
  bench::Table table(options);
  bool has_torch = true;
  for (const Case& of : kCases) {
    has_torch &= measure_step(of, options, table);
    measure_lanes(of, table);
  }
  table.print();
  return has_torch ? 0 : kNoTorch;
}

// Measures how long a training step takes, against PyTorch's FP32 step of the same model
// (bench/torch_step.py, a separate process on the same CPUs that takes turns; LOCKSTEP_PYTHON names
// an interpreter with torch). All of PyTorch's settings are tried; rows name the fastest, which
// they use.
//   An FP32 step without measurements
//   What one emulated lane adds to a step of FP32, both with all statistics and errors
//   The same lane against QPyTorch, which rounds at layer borders and measures nothing
//   A lane of each recipe of scaled factors against a lane of plain FP8, both in one run
//   FP32 and three emulated lanes with all statistics and errors, in every step or every tenth;
//   also against four plain FP32 steps
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
  std::map<std::string, double> sizes = {};
  // The targets of one lane, and of FP32 + 3 lanes, against PyTorch's step; 0: none, and no rows of
  // lanes.
  double lane_target = 0, lanes_target = 0;
};
const Case kCases[] = {
    {"mlp", "784-512-512-10, batch 128", 128, {{"hidden1", 512}, {"hidden2", 512}}},
    {"resnet20", "3x32x32, batch 64", 64, {}, 1.3, 5},
    {"gpt", "4 layers, width 256, context 128, batch 8", 8, {}, 1.3, 5},
    {"bert", "2 layers, width 128, context 64, batch 16", 16},
    {"lstm", "2 layers, hidden 256, context 64, batch 16", 16},
    {"unet", "width 16, 3x32x32, batch 16", 16},
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
  // `emulator`: see bench/torch_step.py.
  TorchPeer(const Case& of, const bench::Options& options, const TorchSetting& setting,
            const char* emulator = "none") {
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
            setting.channels_last ? "channels_last" : "contiguous", emulator,
            static_cast<char*>(nullptr));
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
  const bool has_images = of.model == "resnet20" || of.model == "unet";  // mlp flattens its own
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
  Steps(const Case& of, std::vector<std::string> lanes, const Measuring& measuring = {}) {
    RunOptions options;
    options.model = of.model;
    options.sizes = of.sizes;
    options.batch = of.batch;
    options.lanes = std::move(lanes);
    options.steps = int64_t{1} << 40;
    options.optimizer.values = {{"lr", 0.01}};
    options.measuring = measuring;
    run_ = std::make_unique<LockstepRun>(options);
  }
  void step() { run_->run(stop_); }
  double seconds() {
    return bench::seconds_of([&] { step(); });
  }
  void observe(Observer& observer) { run_->add_observer(&observer); }

 private:
  std::unique_ptr<LockstepRun> run_;
  const std::atomic<bool> stop_{true};  // after each step
};

// What an emulated lane adds to a step of FP32, both with all statistics.
class LaneSteps {
 public:
  LaneSteps(const Case& of, const std::string& lane)
      : with_(of, {"fp32", lane}), without_(of, {"fp32"}) {}
  double seconds() { return with_.seconds() - without_.seconds(); }

 private:
  Steps with_, without_;
};

// The time of two lanes of one run, of which FP32 is the reference.
class TwoLanes {
 public:
  TwoLanes(const Case& of, const std::string& first, const std::string& second)
      : steps_(of, {"fp32", first, second}) {
    steps_.observe(times_);
  }
  // A step; the first lane's part of it.
  double first() {
    steps_.step();
    return times_.of_lane.at(1);
  }
  double second() const { return times_.of_lane.at(2); }  // of the same step

 private:
  struct LaneTimes : Observer {
    std::vector<double> of_lane;
    void on_step(const StepRecord& step) override {
      of_lane.clear();
      for (const LaneStep& lane : step.lanes) of_lane.push_back(lane.seconds);
    }
  };
  Steps steps_;
  LaneTimes times_;
};

struct RecipeCost {
  const char* preset;
  double target;  // against fp8-current; 0: sums of hardware, which cost more on any CPU
};
constexpr double kRecipeTarget = 1.3, kHadamardTarget = 1.5;
const RecipeCost kRecipes[] = {
    {"fp8-delayed", kRecipeTarget},
    {"fp8-tensorwise", kRecipeTarget},
    {"fp8-rowwise", kRecipeTarget},
    {"fp8-rowwise-bf16-wgrad", kRecipeTarget},
    {"fp8-blockwise", kRecipeTarget},
    {"fp8-blockwise-torchao", kRecipeTarget},
    {"deepseek-v3", 0},
    {"mxfp8", kRecipeTarget},
    {"mxfp8-bf16-wgrad", kRecipeTarget},
    {"nvfp4", kRecipeTarget},
    {"fp8-current-bf16-ends", kRecipeTarget},
    {"nvfp4-hadamard", kHadamardTarget},
    {"nvfp4-hadamard-drawn", kHadamardTarget},
    {"nvfp4-bf16-ends", kHadamardTarget},
};

const std::vector<std::string> kLanes = {"fp32", "torch-autocast-fp16", "torch-autocast-bf16",
                                         "tf32"};
constexpr int64_t kSparse = 10;          // --statistics-every
constexpr double kEmulatorTarget = 0.7;  // of one lane, against QPyTorch compiled with -O3

bench::Row row_of(const Case& of, const std::string& work, const std::string& peer,
                  double target = 0) {
  return {.work = of.model + " " + work,
          .size = of.size,
          .unit = bench::Unit::kMilliseconds,
          .peer = peer,
          .target = target};
}

// False without PyTorch to compare with.
bool measure_step(const Case& of, const bench::Options& options, bench::Table& table) {
  bench::Row step = row_of(of, "FP32 step", "PyTorch", 1.0);
  bench::Row lane = row_of(of, "one FP16 lane, all statistics", "PyTorch", of.lane_target);
  bench::Row lanes = row_of(of, "FP32 + 3 lanes, all statistics", "PyTorch", of.lanes_target);
  bench::Row sparse = row_of(of, "FP32 + 3 lanes, statistics every 10", "PyTorch");
  const bool has_lanes = of.lanes_target > 0;
  const auto wants_lanes = [&](const bench::Row& row) { return has_lanes && table.wants(row); };
  if (!table.wants(step) && !wants_lanes(lane) && !wants_lanes(lanes) && !wants_lanes(sparse)) {
    return true;
  }
  const TorchSetting* setting = tune_torch(of, options);
  if (setting == nullptr) {
    fmt::print(stderr, "{}: PyTorch skipped, LOCKSTEP_PYTHON has no torch\n", of.model);
    return false;
  }
  for (bench::Row* row : {&step, &lane, &lanes, &sparse}) row->peer = setting->name;
  TorchPeer torch(of, options, *setting);
  const auto ask = [&] { return torch.ask("step"); };
  ask();  // starts it before this process reads its own memory
  if (table.wants(step)) {
    Steps plain(of, {"fp32"}, {.on = false});
    const PeakMemory memory;
    table.measure_timed(step, ask, [&] { return plain.seconds(); });
    table.add({.work = of.model + " peak memory of steps",
               .size = of.size,
               .unit = bench::Unit::kMegabytes,
               .peer = "PyTorch"},
              torch.ask("memory"), memory.bytes());
  }
  if (wants_lanes(lane)) {
    LaneSteps one(of, kLanes[1]);
    table.measure_timed(lane, ask, [&] { return one.seconds(); });
  }
  if (wants_lanes(lanes)) {
    Steps all(of, kLanes);
    table.measure_timed(lanes, ask, [&] { return all.seconds(); });
  }
  if (wants_lanes(sparse)) {
    Steps some(of, kLanes, {.statistics_every = kSparse});
    table.measure_timed(sparse, ask, [&] {
      return bench::seconds_of([&] {
               for (int64_t i = 0; i < kSparse; ++i) some.step();
             }) /
             kSparse;
    });
  }
  return true;
}

// The cost of --statistics health, compared with --statistics none.
void measure_health(const Case& of, bench::Table& table) {
  constexpr double kTarget = 1.05;
  const bench::Row row =
      row_of(of, "FP32 + 3 lanes, health", "the same without statistics", kTarget);
  if (of.lanes_target == 0 || !table.wants(row)) return;
  Steps none(of, kLanes, {.statistics_every = 0});
  Steps health(of, kLanes, {.statistics_every = 0, .counts_between = true});
  none.step();  // the first step has all statistics
  health.step();
  table.measure_timed(
      row, [&] { return none.seconds(); }, [&] { return health.seconds(); });
}

void measure_against_emulators(const Case& of, const bench::Options& options, bench::Table& table) {
  struct Emulator {
    const char *name, *argument;
    double target;
  };
  for (const Emulator& emulator : {Emulator{"QPyTorch, as shipped", "qpytorch", 0},
                                   Emulator{"QPyTorch, -O3", "qpytorch-O3", kEmulatorTarget}}) {
    const bench::Row row =
        row_of(of, "one FP16 lane, all statistics", emulator.name, emulator.target);
    if (!table.wants(row) || of.lanes_target == 0) continue;
    TorchPeer peer(of, options, kTorchSettings[0], emulator.argument);
    if (peer.ask("step") < 0) {  // compiles it
      fmt::print(stderr, "{}: {} skipped: no answer, see above\n", of.model, emulator.name);
      continue;
    }
    LaneSteps one(of, kLanes[1]);
    table.measure_timed(
        row, [&] { return peer.ask("step"); }, [&] { return one.seconds(); });
  }
}

// Both lanes take the same step, so that a turn is one step.
void measure_recipes(const Case& of, bench::Table& table) {
  if (of.model != "gpt") return;
  for (const RecipeCost& recipe : kRecipes) {
    const bench::Row row =
        row_of(of, std::string("lane ") + recipe.preset, "the lane fp8-current", recipe.target);
    if (!table.wants(row)) continue;
    TwoLanes lanes(of, "fp8-current", recipe.preset);
    lanes.first();  // allocates
    table.measure_timed(
        row, [&] { return lanes.first(); }, [&] { return lanes.second(); });
  }
}

void measure_lanes(const Case& of, bench::Table& table) {
  const bench::Row lanes = row_of(of, "FP32 + 3 lanes, all statistics", "4 FP32 steps");
  if (!table.wants(lanes) || of.lanes_target == 0) return;
  Steps plain(of, {"fp32"}, {.on = false});
  Steps all(of, kLanes);
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
        for (size_t i = 0; i < kLanes.size(); ++i) plain.step();
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
    measure_health(of, table);
    measure_against_emulators(of, options, table);
    measure_lanes(of, table);
    measure_recipes(of, table);
  }
  table.print();
  return has_torch ? 0 : kNoTorch;
}

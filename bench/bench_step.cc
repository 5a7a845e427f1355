// How long does a training step take?
//   an FP32 step, nothing measured, beside PyTorch's step of the same model (bench/torch_step.py, a
//   process of its own that takes its turns; LOCKSTEP_PYTHON names an interpreter with torch)
//   FP32 and three emulated lanes with all statistics and errors, beside four plain FP32 steps
// Steps include drawing the batch, on Lockstep's side alone.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "bench/ratio.h"
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

// A PyTorch process that takes a step for every line it is sent.
class TorchPeer {
 public:
  TorchPeer(const Case& of, int threads) {
    const char* python = std::getenv("LOCKSTEP_PYTHON");
    if (python == nullptr) return;
    int to_child[2], from_child[2];
    if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      dup2(to_child[0], STDIN_FILENO);
      dup2(from_child[1], STDOUT_FILENO);
      close(to_child[1]), close(from_child[0]);
      const std::string script = std::string(LOCKSTEP_SOURCE_DIR) + "/bench/torch_step.py";
      execl(python, python, script.c_str(), of.model.c_str(), std::to_string(of.batch).c_str(),
            std::to_string(threads).c_str(), static_cast<char*>(nullptr));
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

  // Negative when there is no answer.
  double ask(const char* line) {
    double answer = -1;
    if (out_ == nullptr) return answer;
    std::fprintf(out_, "%s\n", line);
    std::fflush(out_);
    return std::fscanf(in_, "%lf", &answer) == 1 ? answer : -1;
  }

 private:
  pid_t child_ = -1;
  FILE *out_ = nullptr, *in_ = nullptr;
};

// Peak resident bytes since the last reset.
double peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}
void reset_peak() {
  malloc_trim(0);  // what earlier rows left with the allocator is none of this row's
  std::ofstream("/proc/self/clear_refs") << "5";
}

// A run that is taken step by step.
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
    options.measure = measure;
    run_ = std::make_unique<LockstepRun>(options);
  }
  void step() { run_->run(stop_); }

 private:
  std::unique_ptr<LockstepRun> run_;
  const std::atomic<bool> stop_{true};  // after each step
};

void measure_case(const Case& of, TorchPeer& torch, const bench::Options& options,
                  bench::Table& table) {
  const bench::Row step{.work = of.model + " FP32 step",
                        .size = of.size,
                        .unit = bench::Unit::kMilliseconds,
                        .peer = "PyTorch",
                        .target = options.threads == 1 ? 1.0 : 1.2};
  if (table.wants(step)) {
    if (torch.ask("step") < 0) {
      fmt::print(stderr, "{}: PyTorch left out, LOCKSTEP_PYTHON names no torch\n", of.model);
    } else {
      reset_peak();
      Steps plain(of, {"fp32"}, /*measure=*/false);
      table.measure(
          step, [&] { torch.ask("step"); }, [&] { plain.step(); });
      table.add({.work = of.model + " peak memory",
                 .size = of.size,
                 .unit = bench::Unit::kMegabytes,
                 .peer = "PyTorch"},
                torch.ask("memory"), peak_bytes());
    }
  }
  const bench::Row lanes{.work = of.model + " FP32 + 3 lanes, all statistics",
                         .size = of.size,
                         .unit = bench::Unit::kMilliseconds,
                         .peer = "4 FP32 steps",
                         .target = of.lanes_target};
  if (!table.wants(lanes)) return;
  Steps plain(of, {"fp32"}, /*measure=*/false);
  Steps all(of, {"fp32", "torch-autocast-fp16", "torch-autocast-bf16", "tf32"}, /*measure=*/true);
  table.measure(
      lanes,
      [&] {
        for (int i = 0; i < 4; ++i) plain.step();
      },
      [&] { all.step(); });
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  std::vector<std::unique_ptr<TorchPeer>> peers;
  const bench::Options options = bench::start(argc, argv, [&](int threads) {
    for (const Case& of : kCases) peers.push_back(std::make_unique<TorchPeer>(of, threads));
  });
  bench::Table table(options);
  for (size_t i = 0; i < peers.size(); ++i) measure_case(kCases[i], *peers[i], options, table);
  table.print();
}

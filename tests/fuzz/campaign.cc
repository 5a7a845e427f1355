// See campaign.h. A worker notes the input it is at in memory shared with the campaign, which
// watches its time and memory and starts another after a fault.
#include "tests/fuzz/campaign.h"

#include <fcntl.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <thread>

#include "src/core/parallel.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/core/text_hash.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/mutate.h"

namespace lockstep::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSanitized = true;
// The sanitizers' reports of this process and of its children go to files START.<process id>:
// run_program sends standard error elsewhere.
void report_to(const std::string& start) {
  __sanitizer_set_report_path(start.c_str());
}
#else
constexpr bool kIsSanitized = false;
void report_to(const std::string&) {}
#endif
constexpr int kExitMemory = 43;     // of a worker, which has said why
constexpr size_t kMostPerKind = 3;  // inputs kept of findings that have all in common but numbers
constexpr auto kWatchEvery = std::chrono::milliseconds(20);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Bytes of address space (0) or resident (1) of a process.
uint64_t memory_of(pid_t process, int which) {
  std::ifstream file(fmt::format("/proc/{}/statm", process));
  uint64_t pages[2] = {};
  file >> pages[0] >> pages[1];
  return pages[which] * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// The largest that this process has had.
uint64_t most_resident() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

// Written by a worker, read by the campaign.
struct Shared {
  std::atomic<uint64_t> number;    // of the input in progress
  std::atomic<uint64_t> done;      // inputs begun
  std::atomic<double> clock, cpu;  // when it began
  std::atomic<uint64_t> accepted, refused;
};

// What findings of one kind have in common: the words before the first quote, without numbers.
std::string kind_of(std::string_view message) {
  constexpr std::string_view kEnds = "'\"=(\\{\n";
  constexpr size_t kMostLetters = 120;
  std::string kind;
  for (const char c : message.substr(0, message.find_first_of(kEnds))) {
    if ((c < '0' || c > '9') && kind.size() < kMostLetters) kind += c;
  }
  return kind;
}

bool names_fault(const std::string& line) {
  return line.find("ERROR: AddressSanitizer") != std::string::npos ||
         line.find("CHECK failed") != std::string::npos ||
         line.find("runtime error:") != std::string::npos;
}

// Whether the line of a sanitizer's report is of a function with a known source file: one of ours,
// or of a header in ours. The interceptors' files, and those of libraries, are not known here.
bool is_known_frame(const std::string& line) {
  return line.find("    #") != std::string::npos &&
         line.find("libsanitizer") == std::string::npos &&
         (line.find(".cc:") != std::string::npos || line.find(".h:") != std::string::npos);
}

// The line of a sanitizer's report that names the fault, and the first function of ours.
std::string crash_text(const std::string& log) {
  std::string text;
  for (const std::string& line : split(log, '\n')) {
    if (names_fault(line) || line.find("terminate called") != std::string::npos ||
        line.find("what():") != std::string::npos) {
      text += line.substr(0, 200) + " ";
    }
    const bool is_ours = is_known_frame(line) && line.find("/usr/include/") == std::string::npos;
    if (is_ours) return text + line.substr(0, 200);
  }
  return text;
}

// Whether a report of a process that reads a damaged file for another is of our code: a library
// that crashes there, called by ours, is what the process is for.
bool is_fault_of_ours(const std::string& report) {
  bool is_fault = false;
  for (const std::string& line : split(report, '\n')) {
    is_fault |= names_fault(line);
    const bool is_frame = is_fault && line.find("    #") != std::string::npos;
    if (is_frame && line.find("libsanitizer") == std::string::npos) return is_known_frame(line);
  }
  return is_fault;
}

struct Found {
  uint64_t number;
  std::string text;
};

class Worker {
 public:
  Worker(const Target& target, const CampaignOptions& options, int index)
      : target_(target), options_(options) {
    place_.folder = fmt::format("{}/worker{}", options.work, index);
    fs::create_directories(place_.folder);
    log_ = place_.file("log");
    reports_ = place_.file("sanitizer");
    found_ = place_.file("found");
    fs::remove(found_);
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
    shared_ = new (memory) Shared{};
  }
  ~Worker() {
    stop();
    munmap(shared_, sizeof(Shared));
  }
  Worker(const Worker&) = delete;

  // `input_at`: the inputs from `first` on, every stride-th, up to `last`.
  template <typename Inputs>
  void start(Inputs input_at, uint64_t first, uint64_t stride, uint64_t last) {
    std::fflush(nullptr);
    shared_->number = first;
    shared_->clock = 0;
    const pid_t parent = getpid();
    process_ = fork();
    if (process_ < 0) throw std::runtime_error("cannot fork");
    if (process_ == 0) be_worker(input_at, first, stride, last, parent);
  }

  bool is_running() const { return process_ > 0; }
  uint64_t number() const { return shared_->number; }
  const Shared& shared() const { return *shared_; }

  bool is_done() const { return is_done_; }

  // What the worker found and survived, since the last call.
  std::vector<Found> found() {
    std::vector<Found> all;
    std::ifstream file(found_, std::ios::binary);
    file.seekg(read_);
    uint64_t number = 0;
    size_t size = 0;
    while (file >> number >> size && file.get() == ' ') {
      std::string text(size, '\0');
      if (!file.read(text.data(), static_cast<std::streamsize>(size))) break;
      read_ = file.tellg();
      all.push_back({number, std::move(text)});
    }
    return all;
  }
  // Looks at the worker. Returns: what ended it, "" if it still runs or ended by itself.
  std::string look() {
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) == process_) {
      process_ = 0;
      is_done_ = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      if (is_done_ || (WIFEXITED(status) && WEXITSTATUS(status) == kExitMemory)) return "";
      const std::string how = WIFSIGNALED(status)
                                  ? fmt::format("crash ({})", strsignal(WTERMSIG(status)))
                                  : fmt::format("exit code {}", WEXITSTATUS(status));
      return how + ": " + crash_text(log());
    }
    const double began = shared_->clock;
    if (began == 0) return "";
    clockid_t clock = 0;
    if (clock_getcpuclockid(process_, &clock) == 0) {
      const double used = cpu_seconds(clock) - shared_->cpu;
      if (used > options_.most_seconds) {
        return end(fmt::format("hang: more than {} s", options_.most_seconds));
      }
    }
    if (cpu_seconds(CLOCK_MONOTONIC) - began > kMostClockSeconds) {
      return end(fmt::format("hang: waited more than {} s", kMostClockSeconds));
    }
    if (memory_of(process_, 1) > start_bytes_ + kMostBytes) return end(memory_text());
    return "";
  }
  void stop() {
    if (process_ > 0) end("");
  }
  // What it said, and what the sanitizers say of it and of its children.
  std::string log() const {
    std::string text = read_text_file(log_);
    for (const std::string& path : sanitizer_reports()) text += read_text_file(path);
    return text;
  }

 private:
  static std::string memory_text() {
    return fmt::format("memory: more than {} MiB", kMostBytes >> 20);
  }
  std::vector<std::string> sanitizer_reports() const {
    std::vector<std::string> paths;
    if (!kIsSanitized) return paths;
    for (const auto& entry : fs::directory_iterator(place_.folder)) {
      const std::string path = entry.path().string();
      if (path.starts_with(reports_)) paths.push_back(path);
    }
    return paths;
  }
  std::string end(const std::string& why) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
    return why;
  }

  template <typename Inputs>
  [[noreturn]] void be_worker(Inputs input_at, uint64_t first, uint64_t stride, uint64_t last,
                              pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    const int log = open(log_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    dup2(log, STDERR_FILENO);
    for (const std::string& path : sanitizer_reports()) fs::remove(path);
    report_to(reports_);
    const int nowhere = open("/dev/null", O_RDWR);
    dup2(nowhere, STDIN_FILENO);
    dup2(nowhere, STDOUT_FILENO);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (!kIsSanitized) {
      const rlimit memory{memory_of(getpid(), 0) + kMostBytes, RLIM_INFINITY};
      setrlimit(RLIMIT_AS, &memory);
    }
    set_thread_count(1);
    std::ofstream found(found_, std::ios::binary | std::ios::app);
    bool has_finding = false;  // of this input
    const auto report = [&](const std::string& text) {
      has_finding = true;
      found << shared_->number << ' ' << text.size() << ' ' << text;
      found.flush();
    };
    off_t seen = 0;
    for (uint64_t number = first; number < last; number += stride) {
      const std::string input = input_at(number);
      shared_->number = number;
      shared_->cpu = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
      shared_->clock = cpu_seconds(CLOCK_MONOTONIC);
      ++shared_->done;
      has_finding = false;
      const Verdict verdict = judge(target_, input, place_);
      if (verdict.end == End::kFinding) report(verdict.message);
      if (most_resident() > start_bytes_ + kMostBytes) {  // which the next input could not exceed
        report(memory_text());
        _exit(kExitMemory);
      }
      const off_t end = lseek(STDERR_FILENO, 0, SEEK_END);
      if (end > seen) {
        std::string said = read_text_file(log_).substr(static_cast<size_t>(seen));
        seen = end;
        try {
          check_text(said, "standard error");
        } catch (const Finding& finding) {
          report(finding.what());
        }
      }
      for (const std::string& path : sanitizer_reports()) {
        const std::string said = read_text_file(path);
        if (is_fault_of_ours(said)) report("in a process that reads: " + crash_text(said));
        fs::remove(path);
      }
      if (has_finding) continue;
      ++(verdict.end == End::kAccepted ? shared_->accepted : shared_->refused);
    }
    _exit(0);
  }

  const Target& target_;
  const CampaignOptions& options_;
  Place place_;
  std::string log_, found_, reports_;
  Shared* shared_ = nullptr;
  pid_t process_ = 0;
  bool is_done_ = false;
  std::streamoff read_ = 0;  // of found_
  uint64_t start_bytes_ = memory_of(getpid(), 1);
};

}  // namespace

Tally run_campaign(const Target& target, const CampaignOptions& options) {
  const std::vector<std::string> seeds = target.seeds();
  const auto input_at = [&](uint64_t number) {
    return input_of(target, seeds, options.seed, number);
  };
  const auto stride = static_cast<uint64_t>(options.jobs);
  Tally tally;
  const auto begin = Clock::now();
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < options.jobs; ++i) {
    workers.push_back(std::make_unique<Worker>(target, options, i));
    workers.back()->start(input_at, options.first + static_cast<uint64_t>(i), stride,
                          options.inputs);
  }
  const auto keep = [&](const Found& found, const Worker& worker) {
    ++tally.findings;
    if (++tally.kinds[kind_of(found.text)] > kMostPerKind) return;
    const std::string name =
        fmt::format("{}/{}-{}-{}", options.findings, target.name, options.seed, found.number);
    fs::create_directories(options.findings);
    write_text_file_atomically(name, input_at(found.number));
    write_text_file_atomically(name + ".txt", found.text + "\n\n" + worker.log());
    fmt::print("{} --seed {} --input {}: {}\n", target.name, options.seed, found.number,
               printable(found.text.substr(0, 400)));
    std::fflush(stdout);
  };
  for (bool is_any = true; is_any;) {
    std::this_thread::sleep_for(kWatchEvery);
    const bool is_over = options.seconds > 0 && seconds_since(begin) > options.seconds;
    is_any = false;
    for (const auto& worker : workers) {
      if (!worker->is_running()) continue;
      const std::string fault = worker->look();
      if (is_over) worker->stop();
      for (const Found& found : worker->found()) keep(found, *worker);
      if (!fault.empty()) keep({worker->number(), fault}, *worker);
      if (!is_over && !worker->is_running() && !worker->is_done()) {
        worker->start(input_at, worker->number() + stride, stride, options.inputs);
      }
      is_any = is_any || worker->is_running();
    }
  }
  for (const auto& worker : workers) {
    tally.inputs += worker->shared().done;
    tally.accepted += worker->shared().accepted;
    tally.refused += worker->shared().refused;
  }
  tally.seconds = seconds_since(begin);
  return tally;
}

std::string run_one(const Target& target, const std::string& input,
                    const CampaignOptions& options) {
  Worker worker(target, options, 0);
  worker.start([&](uint64_t) { return input; }, 0, 1, 1);
  while (worker.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::string fault = worker.look();
    if (!fault.empty()) return fault + "\n" + worker.log();
  }
  const std::vector<Found> found = worker.found();
  return found.empty() ? "" : found[0].text + "\n" + worker.log();
}

}  // namespace lockstep::fuzz

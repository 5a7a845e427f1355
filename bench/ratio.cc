// Turns, medians, the table, and pinned threads.
#include "bench/ratio.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>
#include <thread>

#include "src/core/parallel.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Set once, by start().
bool uses_cpu_clock = false;

double now_seconds() {
  timespec time{};
  clock_gettime(uses_cpu_clock ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  constexpr double kNanosecond = 1e-9;
  return static_cast<double>(time.tv_sec) + kNanosecond * static_cast<double>(time.tv_nsec);
}

constexpr int kFewestTurns = 7;
// One turn calls its function until this time has passed, so that the clock's own cost is
// negligible.
constexpr double kTurnSeconds = 1e-3;
constexpr size_t kHugePage = size_t{2} << 20;

double seconds_of(const std::function<void()>& function, int calls) {
  const double begin = now_seconds();
  for (int i = 0; i < calls; ++i) function();
  return (now_seconds() - begin) / calls;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);  // on failure the thread is not pinned
}

// Every index waits for all others, so that each runs on a separate thread. Returns the CPUs.
std::vector<int> pin_pool(int threads) {
  std::vector<int> cpus = allowed_cpus();
  if (static_cast<int>(cpus.size()) < threads) return {};
  cpus.resize(static_cast<size_t>(threads));
  std::atomic<int> arrived{0};
  parallel_for(threads, [&](int64_t i) {
    arrived.fetch_add(1);
    while (arrived.load() < threads) std::this_thread::yield();
    pin_to(cpus[static_cast<size_t>(i)]);
  });
  return cpus;
}

[[noreturn]] void usage(std::string_view argument) {
  fmt::print(stderr,
             "benchmark: unknown option {}; --threads=N --markdown --filter=TEXT --seconds=S "
             "--cpu-clock\n",
             argument);
  std::exit(2);
}

}  // namespace

Options start(int argc, char** argv, const std::function<void(int threads)>& start_peers) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const std::string value(equals == argument.npos ? "" : argument.substr(equals + 1));
    if (name == "--threads") {
      options.threads = std::atoi(value.c_str());
    } else if (name == "--markdown") {
      options.markdown = true;
    } else if (name == "--cpu-clock") {
      uses_cpu_clock = true;
    } else if (name == "--filter") {
      options.filter = value;
    } else if (name == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else {
      usage(argument);
    }
  }
  if (uses_cpu_clock && options.threads > 1) {
    fmt::print(stderr, "benchmark: --cpu-clock needs --threads=1, not {}\n", options.threads);
    std::exit(2);
  }
  set_thread_count(options.threads);
  if (start_peers) start_peers(options.threads);
  options.cpus = pin_pool(options.threads);
  return options;
}

bool Table::wants(const Row& row) const {
  return row.work.find(options_.filter) != std::string::npos ||
         row.size.find(options_.filter) != std::string::npos;
}

void Table::measure(const Row& row, const std::function<void()>& peer,
                    const std::function<void()>& work) {
  if (!wants(row)) return;
  // The first calls touch the memory and the code; they also show how many calls fill a turn.
  const auto calls_of = [](const std::function<void()>& function) {
    function();
    return 1 + static_cast<int>(kTurnSeconds / seconds_of(function, 1));
  };
  const int peer_calls = calls_of(peer), calls = calls_of(work);
  std::vector<double> peer_times, times, ratios;
  const auto end = Clock::now() + std::chrono::duration<double>(options_.seconds);
  while (static_cast<int>(times.size()) < kFewestTurns || Clock::now() < end) {
    peer_times.push_back(seconds_of(peer, peer_calls));
    times.push_back(seconds_of(work, calls));
    ratios.push_back(times.back() / peer_times.back());
  }
  rows_.push_back({row, median(peer_times), median(times), median(ratios)});
}

void Table::measure_timed(const Row& row, const std::function<double()>& peer,
                          const std::function<double()>& work) {
  if (!wants(row)) return;
  peer(), work();
  std::vector<double> peer_times, times, ratios;
  const auto end = Clock::now() + std::chrono::duration<double>(options_.seconds);
  while (static_cast<int>(times.size()) < kFewestTurns || Clock::now() < end) {
    peer_times.push_back(peer());
    times.push_back(work());
    ratios.push_back(times.back() / peer_times.back());
  }
  rows_.push_back({row, median(peer_times), median(times), median(ratios)});
}

void Table::add(const Row& row, double peer_seconds, double seconds) {
  if (wants(row)) rows_.push_back({row, peer_seconds, seconds, seconds / peer_seconds});
}

int Table::print() const {
  const auto value = [](const Row& row, double seconds) {
    constexpr double kGiga = 1e9, kKilo = 1e3, kMega = 1e6;
    switch (row.unit) {
      case Unit::kNsPerElement:
        return fmt::format("{:.3f} ns/element", seconds * kGiga / row.amount);
      case Unit::kGigaflops:
        return fmt::format("{:.1f} GF/s", row.amount / seconds / kGiga);
      case Unit::kMilliseconds:
        return fmt::format("{:.1f} ms", seconds * kKilo);
      case Unit::kMegabytes:
        return fmt::format("{:.0f} MB", seconds / kMega);
    }
    return std::string();
  };
  std::vector<std::vector<std::string>> cells = {
      {"work", "size", "threads", "measured", "peer", "ratio", "target"}};
  int missed = 0, targets = 0;
  for (const Measured& m : rows_) {
    const bool met = m.row.target == 0 || m.ratio <= m.row.target;
    missed += !met;
    targets += m.row.target != 0;
    const std::string target =
        m.row.target == 0 ? "-" : fmt::format("{:.2f}{}", m.row.target, met ? "" : " missed");
    cells.push_back({m.row.work, m.row.size, std::to_string(options_.threads),
                     value(m.row, m.seconds), m.row.peer + " " + value(m.row, m.peer_seconds),
                     fmt::format("{:.2f}", m.ratio), target});
  }
  std::vector<size_t> widths(cells[0].size(), 0);
  for (const auto& line : cells) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  const std::string edge = options_.markdown ? "| " : "";
  const std::string between = options_.markdown ? " | " : "  ";
  for (size_t l = 0; l < cells.size(); ++l) {
    std::string text = edge;
    for (size_t c = 0; c < widths.size(); ++c) {
      text += fmt::format("{:<{}}", cells[l][c], widths[c]) + between;
    }
    fmt::print("{}\n", text.substr(0, text.find_last_not_of(' ') + 1));
    if (l > 0 || !options_.markdown) continue;
    text = "|";
    for (const size_t width : widths) text += std::string(width + 2, '-') + "|";
    fmt::print("{}\n", text);
  }
  if (targets > 0) fmt::print("\n{} of {} targets missed\n", missed, targets);
  return missed;
}

double seconds_of(const std::function<void()>& work) {
  return seconds_of(work, 1);
}

double median_seconds(const Options& options, const std::function<void()>& work) {
  work();
  const int calls = 1 + static_cast<int>(kTurnSeconds / seconds_of(work, 1));
  std::vector<double> times;
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  while (static_cast<int>(times.size()) < kFewestTurns || Clock::now() < end) {
    times.push_back(seconds_of(work, calls));
  }
  return median(times);
}

FloatArray make_floats(size_t count) {
  const size_t bytes = (count * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // on failure: small pages, slower but correct
  return FloatArray(static_cast<float*>(memory));
}

void FreeFloats::operator()(float* floats) const {
  std::free(floats);
}

}  // namespace lockstep::bench

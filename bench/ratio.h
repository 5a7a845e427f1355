// Measures how much slower a piece of work is than its peer.
// Both run in the same process, in turns, so that the machine's drift affects both. A row reports
// the medians of their times, the median of the ratios of neighbouring turns, and the target. Knows
// nothing of what is measured. A benchmark's main():
//
//   const bench::Options options = bench::start(argc, argv);    // threads, pinned
//   bench::Table table(options);
//   table.measure({"round fp16", "64 Mi", bench::Unit::kNsPerElement, count, "memcpy", 1.05},
//                 [&] { memcpy(...); }, [&] { quantize(...); });
//   table.print();
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::bench {

// --threads=N (1)  --markdown  --filter=TEXT: only rows whose work or size contains TEXT
// --seconds=S (0.4): time spent on one row, but at least kFewestTurns turns. --cpu-clock: the time
// of this thread alone, for a machine that others also use; one thread only.
struct Options {
  int threads = 1;
  bool markdown = false;
  std::string filter;
  double seconds = 0.4;
  std::vector<int> cpus = {};  // that the threads are pinned to; empty if there are too few
};

// Reads the options, sets the pool's thread count, and pins the calling thread and the pool's
// threads to one CPU each. `start_peers` is called before that: libraries with threads of their own
// must start them there, or their threads would inherit the calling thread's one CPU.
// Exits with code 2 on an unknown option.
Options start(int argc, char** argv, const std::function<void(int threads)>& start_peers = {});

enum class Unit { kNsPerElement, kGigaflops, kMilliseconds, kMegabytes };

// The text of one row. `amount`: elements or floating-point operations of one call. kMegabytes rows
// are added with bytes instead of seconds.
// `target`: the ratio to reach, time over peer's time; 0: none.
struct Row {
  std::string work, size;
  Unit unit = Unit::kNsPerElement;
  double amount = 1;
  std::string peer;
  double target = 0;
};

class Table {
 public:
  explicit Table(const Options& options) : options_(options) {}

  // True if the row is selected: a benchmark need not make data for other rows.
  bool wants(const Row& row) const;
  // Runs both in turns and keeps the row; does nothing if the filter excludes it.
  void measure(const Row& row, const std::function<void()>& peer,
               const std::function<void()>& work);
  // The same for two that return the seconds they took by their own clocks: a peer in another
  // process, a part of a step.
  void measure_timed(const Row& row, const std::function<double()>& peer,
                     const std::function<double()>& work);
  // A row measured elsewhere (another process): seconds of one call of each.
  void add(const Row& row, double peer_seconds, double seconds);
  // All rows: `work | size | threads | value | peer's value | ratio | target`, aligned text or
  // Markdown, then the number of missed targets. Returns that number.
  int print() const;

 private:
  struct Measured {
    Row row;
    double peer_seconds, seconds, ratio;
  };
  Options options_;
  std::vector<Measured> rows_;
};

// The seconds of one call.
double seconds_of(const std::function<void()>& work);
// Median seconds of one call, in turns like those of measure(): for a row whose peer runs
// elsewhere.
double median_seconds(const Options& options, const std::function<void()>& work);

// `count` floats at the start of a page, huge pages advised. Not initialised.
struct FreeFloats {
  void operator()(float* floats) const;
};
using FloatArray = std::unique_ptr<float[], FreeFloats>;
FloatArray make_floats(size_t count);

}  // namespace lockstep::bench

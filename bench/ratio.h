// How much slower than its peer is a piece of work?
// Both run in the same process, turn by turn, so that the machine's drift hits both: a row reports
// the medians of their times and the median of the ratios of neighbouring turns, beside the target.
// Knows nothing of what is measured. A benchmark's main():
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
// --seconds=S (0.4): time spent on one row, at least kFewestTurns turns whatever it takes.
// --cpu-clock: the time of this thread alone, for a machine that others use, too; one thread only.
struct Options {
  int threads = 1;
  bool markdown = false;
  std::string filter;
  double seconds = 0.4;
  std::vector<int> cpus = {};  // that the threads sit on; empty where there are too few
};

// Reads the options and sets the pool's thread count; the calling thread and the pool's then sit on
// one CPU each. `start_peers` is called before they are pinned: libraries with threads of their own
// must start them there, or their threads would inherit the calling thread's one CPU.
// Exits with code 2 on an unknown option.
Options start(int argc, char** argv, const std::function<void(int threads)>& start_peers = {});

enum class Unit { kNsPerElement, kGigaflops, kMilliseconds, kMegabytes };

// What one row says. `amount`: elements or floating-point operations of one call. kMegabytes rows
// are added with bytes in place of seconds.
// `target`: the ratio that is to be reached, time over peer's time; 0: none.
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

  // True when the row is wanted: lets a benchmark skip making data for rows that are not.
  bool wants(const Row& row) const;
  // Runs both in turns and keeps the row; nothing when the filter leaves it out.
  void measure(const Row& row, const std::function<void()>& peer,
               const std::function<void()>& work);
  // The same, for a peer in another process: `peer` returns the seconds it took by its own clock.
  void measure_timed(const Row& row, const std::function<double()>& peer,
                     const std::function<void()>& work);
  // A row measured elsewhere (another process): seconds of one call of each.
  void add(const Row& row, double peer_seconds, double seconds);
  // All rows: `work | size | threads | value | peer's value | ratio | target`, aligned text or
  // Markdown, and below them how many missed their target: that number is returned, too.
  int print() const;

 private:
  struct Measured {
    Row row;
    double peer_seconds, seconds, ratio;
  };
  Options options_;
  std::vector<Measured> rows_;
};

// Median seconds of one call, in turns as measure() takes them: for a row whose peer runs
// elsewhere.
double median_seconds(const Options& options, const std::function<void()>& work);

// `count` floats at the start of a page, huge pages advised. Not initialised.
struct FreeFloats {
  void operator()(float* floats) const;
};
using FloatArray = std::unique_ptr<float[], FreeFloats>;
FloatArray make_floats(size_t count);

}  // namespace lockstep::bench

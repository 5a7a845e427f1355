// The table of recorded quantities: a row is a dataset of /lanes/LANE in the run file. A row names
// the member of a step's records that holds the quantity: from it the writer fills the dataset, and
// into it the reader puts what it reads. `lockstep check` compares the rows and `lockstep list
// quantities` explains them. A new quantity is a field of the record that holds it
// (src/train/step_record.h) and a row here. A new statistic of tensors is a row of its own
// table (emulation/stats/tensor_stats.h), which this one includes. Knows nothing of HDF5.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "emulation/stats/accumulator_health.h"
#include "emulation/stats/tensor_stats.h"
#include "src/record/run/lane_info.h"
#include "src/train/step_record.h"

namespace lockstep {

// Steps summed in one row of exponent_histogram_50, and the first steps that all have a histogram.
inline constexpr int64_t kHistogramBlock = 50;
inline constexpr int64_t kHistogramFirstSteps = 20;

// What a row of the dataset has a number for. kLoss: one dataset per loss, one number a row.
// kDataset: of checksums, the datasets whose rows they are of (run_checksum.h).
enum class Axis : uint8_t {
  kOne,
  kGroup,
  kParameter,
  kLoss,
  kScaler,
  kWatched,
  kSite,
  kSiteAndBin,
  kDataset
};

// What a dataset has a row for. kSample: a step that sampled sums of products. kHistogram: a step
// with its own histogram. kBlock: kHistogramBlock steps. kProduct: a kind of product on a device.
enum class Rows : uint8_t { kStep, kEvaluation, kSample, kHistogram, kBlock, kProduct };
std::string_view to_string(Rows rows);  // "step"

enum class Storage : uint8_t { kF64, kU64, kI64, kU32, kI32, kU8 };
std::string_view to_string(Storage storage);  // "f64"

// How `lockstep check` compares two numbers.
enum class Compared : uint8_t { kNone, kExact, kTolerance };

// The sites that have a number to compare. If neither of two runs has a number, nothing is
// compared; if only one has, that is a difference.
enum class At : uint8_t {
  kEverySite,
  kMeasured,  // in this lane
  kCompared,  // with an element finite in this lane and in the reference
  kNonzero,   // with an element that is not zero
  kUpdated,   // with something added to a stored value
};
inline constexpr size_t kAtCount = 5;

// Quantities that the recorder gathers over several steps.
enum class Gathered : uint8_t {
  kSampleSteps,
  kHistograms,
  kHistogramSteps,
  kBlockSums,
  kBlockSteps,
  kStepChecksums,
  kSecondsChecksums,
  kEvaluationChecksums,
  kSampleChecksums,
  kHistogramChecksums,
  kBlockChecksums,
  kProductChecksums,
};

// The member of a step's records that holds the quantity. Its type decides the stored type.
using Source =
    std::variant<uint64_t TensorStats::*, double TensorStats::*, uint64_t ErrorStats::*,
                 double ErrorStats::*, double SiteRecord::*,                  // of sites
                 uint64_t UpdateStats::*, double UpdateStats::*,              // of updates
                 uint64_t DecisionStats::*, double DecisionStats::*,          // of decisions
                 uint64_t AccumulatorHealth::*, double AccumulatorHealth::*,  // of sums
                 double LossEffect::*,                                        // on the loss
                 uint64_t LiveStats::*, int64_t LiveStats::*,                 // of a monitor's lane
                 uint64_t WatchedStats::*, double WatchedStats::*,            // of watched values
                 double ScalerRecord::*, bool ScalerRecord::*, int32_t ScalerRecord::*,
                 double LaneStep::*, int32_t LaneStep::*, std::vector<double> LaneStep::*,
                 int64_t Evaluation::*, double Evaluation::*, int64_t DeviceWork::*,
                 int64_t DeviceProduct::*, Gathered>;

struct Quantity {
  std::string name;  // the dataset's path below the lane's group; "losses/*": one for each loss
  Axis axis;
  Source source;
  Compared comparison;
  std::string help;
  At at = At::kEverySite;
  // Written if the lane has no such number (it died, it lacks the site); integers: 0 for NaN.
  double absent = std::numeric_limits<double>::quiet_NaN();
  // Missing from files of earlier versions, or from runs to which it does not apply.
  bool optional = false;
  const Statistic* statistic = nullptr;  // of a tensor: its row in that table
  bool live = false;                     // a monitor's lane has it, and nothing else

  Rows rows() const;
  Storage storage() const;
  bool is_wide() const { return axis == Axis::kSite || axis == Axis::kSiteAndBin; }
  // Steps that only count have it.
  bool is_counted() const {
    return statistic != nullptr && statistic->kind() == StatisticKind::kCount;
  }
  bool is_checksum() const {
    const auto* gathered = std::get_if<Gathered>(&source);
    return gathered != nullptr && *gathered >= Gathered::kStepChecksums;
  }
  bool is_of_watched() const { return axis == Axis::kWatched; }
  bool is_of_decisions() const {
    return std::holds_alternative<uint64_t DecisionStats::*>(source) ||
           std::holds_alternative<double DecisionStats::*>(source);
  }
  bool is_of_live() const {
    return std::holds_alternative<uint64_t LiveStats::*>(source) ||
           std::holds_alternative<int64_t LiveStats::*>(source);
  }
  // Whether this lane's files always have it; others may not.
  bool is_required(const LaneInfo& lane) const { return lane.is_live() ? live : !optional; }
  bool is_of_device() const {
    return std::holds_alternative<int64_t DeviceWork::*>(source) ||
           std::holds_alternative<int64_t DeviceProduct::*>(source) ||
           source == Source(Gathered::kProductChecksums);
  }
};
// "step, site": what the dataset has a row for, then what a row has a number for.
std::string axes_text(const Quantity& quantity);
std::span<const Quantity> quantities();  // in the order in which `check` compares them

// Requires: a quantity of this source exists.
const Quantity& quantity_of(const Source& source);

// A quantity's numbers when read: counts and hashes as integers, all others in double. Exactly one
// of the two is used.
struct Numbers {
  std::vector<uint64_t> integers;
  std::vector<double> reals;
  size_t size() const { return integers.empty() ? reals.size() : integers.size(); }
};

}  // namespace lockstep

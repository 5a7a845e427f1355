// Rounded values come back as codes of the narrowest type that has them all, statistics as a few
// records of counts and two sums per virtual lane: 256 bytes for a block of 4096 elements.
#include "emulation/kernels/cuda/quantize.h"

#include <algorithm>

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/cuda/codes.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kMostRecords = 16;  // of counts: 2 KiB each

// The narrowest type with all numbers of the format; FP32 words hold any.
Type type_holding(const Format& format) {
  Type narrowest = Type::kTf32;
  for (const Type type : {Type::kBf16, Type::kFp16, Type::kE5m2, Type::kE4m3}) {
    if (contains(format_of(type), format)) narrowest = type;
  }
  return narrowest;
}

}  // namespace

bool DeviceQuantizer::rounds(const QuantizeSpec& spec) {
  static const Format& fp32 = find_format("fp32");
  return spec.measure_only || contains(fp32, *spec.format);
}

CopiedBytes DeviceQuantizer::run(const NumbersOnDevice& before, const QuantizeSpec& spec,
                                 float* after, TensorStats* stats) {
  copied_ = {};
  if (stats != nullptr) *stats = TensorStats();
  if (before.count == 0) return copied_;
  RoundElements round{before, ElementRounder<float>(spec), {}, {}};
  const Type type = type_holding(*spec.format);
  const auto bytes = static_cast<size_t>(before.count * bytes_of(type));
  if (!spec.measure_only) {
    round.after = {after_.reserve(bytes), before.count, static_cast<int>(bytes_of(type))};
    if (type != Type::kTf32) round.code = NarrowCode(format_of(type));
  }
  if (stats != nullptr) {
    measure(round, *spec.format, stats);
  } else if (!spec.measure_only) {
    device_.launch(round);
  }
  if (spec.measure_only) return copied_;
  codes_.resize(bytes);
  download(codes_.data(), round.after.data, bytes);
  unpack_values(codes_.data(), type, after, before.count);
  return copied_;
}

void DeviceQuantizer::measure(const RoundElements& round, const Format& format,
                              TensorStats* stats) {
  const int64_t lanes = lane_count(round.before.count), blocks = lanes / kReductionLanes;
  const auto ranges = array<MagnitudeRange>(ranges_, lanes);
  const auto sums = array<MeasuredSums>(sums_, lanes);
  std::vector<TensorStats> records(static_cast<size_t>(std::min(blocks, kMostRecords)));
  const auto counts = array<TensorStats>(counts_, std::ssize(records));
  const size_t record_bytes = records.size() * sizeof(TensorStats);
  upload(counts.data, records.data(), record_bytes);
  device_.launch(FindRanges{round.before, ranges});
  device_.launch(MeasureLanes{round, StatsLimits(format), ranges, counts, sums});

  download(records.data(), counts.data, record_bytes);
  for (const TensorStats& record : records) stats->merge(record);
  std::vector<MeasuredSums> of_lanes(static_cast<size_t>(lanes));
  download(of_lanes.data(), sums.data, of_lanes.size() * sizeof(MeasuredSums));
  std::vector<BlockSums<kQuantizeSums>> of_blocks(static_cast<size_t>(blocks));
  const MeasuredSums* lane = of_lanes.data();
  for (BlockSums<kQuantizeSums>& block : of_blocks) {
    VirtualLanes squares, errors;
    for (int64_t l = 0; l < kReductionLanes; ++l, ++lane) {
      squares.lane[l] = lane->squares, errors.lane[l] = lane->errors;
    }
    block.sum[kSquares] = squares.join(), block.sum[kRoundErrors] = errors.join();
  }
  const BlockSums<kQuantizeSums> totals = join_sums(of_blocks);
  stats->sum_sq = totals.sum[kSquares], stats->round_err_sq = totals.sum[kRoundErrors];
}

template <typename T>
CheckedArray<T> DeviceQuantizer::array(Buffer& buffer, int64_t count) {
  return {static_cast<T*>(buffer.reserve(static_cast<size_t>(count) * sizeof(T))), count};
}

void DeviceQuantizer::upload(void* to, const void* from, size_t bytes) {
  device_.upload(to, from, bytes);
  copied_.up += static_cast<int64_t>(bytes);
}
void DeviceQuantizer::download(void* to, const void* from, size_t bytes) {
  device_.download(to, from, bytes);
  copied_.down += static_cast<int64_t>(bytes);
}

}  // namespace lockstep::cuda

#include "src/record/run/lane_recorder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "src/core/text.h"
#include "src/graph/op.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/run_checksum.h"
#include "src/record/run/run_file_names.h"
#include "src/train/lockstep.h"

namespace lockstep {
namespace {

hid_t storage_type(Storage storage) {
  const std::array kTypes = {hdf5::type_of<double>(),  hdf5::type_of<uint64_t>(),
                             hdf5::type_of<int64_t>(), hdf5::type_of<uint32_t>(),
                             hdf5::type_of<int32_t>(), hdf5::type_of<uint8_t>()};
  return kTypes.at(static_cast<size_t>(storage));
}

// In the dataset, a number for each dataset whose rows they are of.
bool has_checksums(hid_t lane) {
  const std::string& name = quantity_of(Gathered::kStepChecksums).name;
  const std::string group = name.substr(0, name.find('/'));
  return hdf5::has_link(lane, group) && hdf5::has_link(lane, name) &&
         !GrowingDataset::open(lane, name).row_shape().empty();
}

}  // namespace

std::vector<uint64_t> bits_hash_row(const LaneStep& lane, int64_t site_count) {
  std::vector<uint64_t> row(static_cast<size_t>(site_count), 0);
  for (size_t s = 0; s < row.size(); ++s) {
    if (const SiteRecord* site = measured_site(lane, s)) row[s] = site->stats.bits_hash;
  }
  return row;
}

LaneExtent lane_extent(const RunDescription& description, const LaneDescription& lane) {
  const int64_t groups = static_cast<int64_t>(description.options->groups.size()) + 1;
  LaneExtent extent{static_cast<int64_t>(description.sites->sites.size()),
                    groups,
                    description.options->measuring,
                    loss_names(*description.step_graph),
                    {},
                    lane.scaler_losses,
                    lane.policy.loss_scale_use.skip_by_group ? groups : 0,
                    0};
  if (!description.options->capture_hash.empty()) {
    extent.gradient_norms = static_cast<int64_t>(description.step_graph->parameters.size());
  }
  for (const Site& site : description.sites->sites) {
    extent.stat_exempt.push_back(site.stat_exempt);
    extent.decides = extent.decides || (is_in_graph(site) && find_op(site.op).meaning.decides);
  }
  extent.watched = static_cast<int64_t>(description.watched.size());
  extent.uses_device = !lane.device_sums.empty();
  extent.is_live = lane.name == kLiveLane;
  return extent;
}

int64_t LaneExtent::width(Axis axis) const {
  const std::array kWidths = {int64_t{1},       groups,  gradient_norms, int64_t{1},
                              scaler_columns(), watched, sites,          sites * kHistogramBins,
                              int64_t{1}};
  return kWidths.at(static_cast<size_t>(axis));
}

LaneRecorder LaneRecorder::create(hid_t lanes, const LaneDescription& lane, int64_t index,
                                  const LaneExtent& extent) {
  LaneRecorder r;
  r.group_ = hdf5::create_group(lanes, hdf5::escape_link(lane.name));
  const hid_t group = r.group_.id();
  hdf5::write_attribute(group, run_names::kIndex, index);
  hdf5::write_attribute(group, run_names::kEngine, lane.engine);
  hdf5::write_attribute(group, run_names::kTarget, lane.target);
  hdf5::write_attribute(group, run_names::kIsReference, int64_t{lane.is_reference});
  std::string fallbacks;
  for (const std::string& kernel : lane.fallbacks) {
    fallbacks += (fallbacks.empty() ? "" : ",") + kernel;
  }
  hdf5::write_attribute(group, run_names::kFallbacks, fallbacks);
  hdf5::write_attribute(group, run_names::kDiedAt, int64_t{-1});
  hdf5::write_attribute(group, run_names::kDiedOf, int64_t{0});
  hdf5::write_attribute(group, run_names::kPolicyHash, run_names::hex(lane.policy.hash()));
  // The captured lane's memory was not measured.
  if (lane.memory != MemoryFacts{}) {
    hdf5::write_attribute(group, run_names::kMemory, to_json(lane.memory));
  }
  if (!lane.warnings.empty()) {
    hdf5::write_attribute(group, run_names::kWarnings, join(lane.warnings, "\n"));
  }
  if (!lane.site_formats.empty()) {
    hdf5::write_texts(group, run_names::kSiteFormats, lane.site_formats);
  }
  if (!lane.device_sums.empty()) {
    hdf5::write_texts(group, run_names::kDeviceSums, lane.device_sums);
  }
  hdf5::write_text(group, run_names::kPolicy, lane.policy.text);
  r.extent_ = extent;
  r.site_count_ = extent.sites;
  r.sums_.assign(static_cast<size_t>(extent.sites * kHistogramBins), 0);
  r.make(group, true);
  return r;
}

LaneRecorder LaneRecorder::open(hid_t lanes, const LaneDescription& lane, const LaneExtent& extent,
                                int64_t steps_complete, std::vector<uint64_t> unfinished_sums) {
  LaneRecorder r;
  r.group_ = hdf5::open_group(lanes, hdf5::escape_link(lane.name));
  r.extent_ = extent;
  r.site_count_ = extent.sites;
  r.sums_ = std::move(unfinished_sums);
  r.make(r.group_.id(), false);
  // Records and sums of steps that were never completed are written again.
  const GrowingDataset& histogram_steps = r.dataset(Gathered::kHistogramSteps);
  while (r.histogram_records_ < histogram_steps.rows()) {
    int64_t step = 0;
    histogram_steps.read(r.histogram_records_, &step);
    if (step >= steps_complete) break;
    ++r.histogram_records_;
  }
  r.recall_products(steps_complete);
  const int64_t died_at = hdf5::int_attribute(r.group_.id(), run_names::kDiedAt);
  r.died_ = died_at >= 0 && died_at < steps_complete;
  if (!r.died_) {
    hdf5::write_attribute(r.group_.id(), run_names::kDiedAt, int64_t{-1});
    hdf5::write_attribute(r.group_.id(), run_names::kDiedOf, int64_t{0});
  }
  return r;
}

void LaneRecorder::make(hid_t lane, bool create) {
  std::map<std::string, hdf5::Handle> groups;  // below the lane's
  const auto group_of = [&](const std::string& name) {
    if (name.empty()) return lane;
    auto found = groups.find(name);
    if (found == groups.end()) {
      found =
          groups
              .emplace(name, create ? hdf5::create_group(lane, name) : hdf5::open_group(lane, name))
              .first;
    }
    return found->second.id();
  };
  // Files of earlier versions are continued without checksums, or with others that nobody reads.
  const bool is_sealed = create || has_checksums(lane);
  const auto add = [&](const Quantity& quantity, hid_t group, const std::string& name,
                       size_t loss) {
    // Files of earlier versions are continued without it.
    if (!create && quantity.optional && H5Lexists(group, name.c_str(), H5P_DEFAULT) <= 0) return;
    QuantityColumn& column = columns_.emplace_back(&quantity, extent_.width(quantity.axis), loss);
    if (const auto* kind = std::get_if<Gathered>(&quantity.source);
        kind != nullptr && quantity.is_checksum()) {
      column.width = static_cast<int64_t>(checksums_[*kind].size());
    }
    std::vector<int64_t> shape = {column.width};
    if (quantity.axis == Axis::kOne || quantity.axis == Axis::kLoss) shape = {};
    if (quantity.axis == Axis::kSiteAndBin) shape = {site_count_, kHistogramBins};
    const size_t slash = quantity.name.find('/');
    names_.push_back(slash == std::string::npos ? name : quantity.name.substr(0, slash + 1) + name);
    // Each step writes the chunk again, and readers read whole chunks.
    constexpr int64_t kChecksumsPerChunk = 2048;
    const int64_t rows_per_chunk =
        quantity.is_checksum()
            ? std::clamp<int64_t>(kChecksumsPerChunk / std::max<int64_t>(column.width, 1), 1,
                                  kRowsPerChunk)
            : kRowsPerChunk;
    if (!create) return datasets_.push_back(GrowingDataset::open(group, name));
    const QuantityRow absent(column);
    const DatasetLayout layout{
        .rows_per_chunk = quantity.is_wide() ? 1 : rows_per_chunk,
        .fill = extent_.is_live && quantity.is_wide() ? absent.data() : nullptr,
        .is_compressed = extent_.is_live && quantity.source == Source(Gathered::kHistograms)};
    datasets_.push_back(
        GrowingDataset::create(group, name, storage_type(quantity.storage()), shape, layout));
  };
  for (const Quantity& quantity : quantities()) {
    if (quantity.is_checksum()) {  // after all others
      if (!is_sealed) continue;
      place_checksums();
    }
    if (extent_.is_live ? !quantity.live : quantity.is_of_live()) continue;
    if (quantity.axis == Axis::kParameter && extent_.gradient_norms == 0) continue;
    if (quantity.is_of_watched() && extent_.watched == 0) continue;
    if (quantity.is_of_decisions() && !extent_.decides) continue;
    if (quantity.is_of_device() && !extent_.uses_device) continue;
    const size_t slash = quantity.name.find('/');
    const bool is_grouped = slash != std::string::npos;
    const std::string its_group = is_grouped ? quantity.name.substr(0, slash) : "";
    if (is_grouped && quantity.optional && !create && !hdf5::has_link(lane, its_group)) continue;
    const hid_t group = group_of(its_group);
    if (quantity.axis != Axis::kLoss) {
      add(quantity, group, is_grouped ? quantity.name.substr(slash + 1) : quantity.name, 0);
      continue;
    }
    for (size_t i = 0; i < extent_.losses.size(); ++i) {
      add(quantity, group, hdf5::escape_link(extent_.losses[i]), i);
    }
  }
  if (extent_.scaler_losses.empty()) return;
  hdf5::write_attribute(group_of(run_names::kLossScale), run_names::kScalerLosses,
                        join(extent_.scaler_losses, ","));
}

size_t LaneRecorder::column_of(const Source& source) const {
  const auto found = std::ranges::find_if(
      columns_, [&](const QuantityColumn& c) { return c.quantity->source == source; });
  return static_cast<size_t>(found - columns_.begin());
}

void LaneRecorder::recall_products(int64_t steps_complete) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const auto each_column = [&](auto&& work) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      const auto* member = std::get_if<int64_t DeviceProduct::*>(&columns_[c].quantity->source);
      if (member != nullptr) work(datasets_[c], *member);
    }
  };
  // A kill may leave columns of different lengths. What some column lacks was never complete.
  int64_t known = kNever, most = 0;
  each_column([&](GrowingDataset& dataset, auto) {
    known = std::min(known, dataset.rows());
    most = std::max(most, dataset.rows());
  });
  if (most == 0) return;
  products_.resize(static_cast<size_t>(known));
  each_column([&](GrowingDataset& dataset, auto member) {
    for (int64_t row = 0; row < known; ++row) {
      dataset.read(row, &(products_[static_cast<size_t>(row)].*member));
    }
  });
  const size_t steps = column_of(&DeviceProduct::step);
  for (int64_t row = known; row < datasets_[steps].rows(); ++row) write_alone(steps, row, &kNever);
  const auto is_late = [&](const DeviceProduct& p) { return p.step >= steps_complete; };
  const auto late = std::ranges::find_if(products_, is_late);
  for (auto p = late; p != products_.end(); ++p) {
    write_alone(steps, p - products_.begin(), &kNever);
  }
  products_.erase(late, products_.end());
}

void LaneRecorder::write_products(int64_t step, const DeviceWork& work) {
  if (column_of(&DeviceProduct::step) == columns_.size()) return;
  for (DeviceProduct product : work.kinds) {
    const auto is_like = [&](const DeviceProduct& known) { return known.is_like(product); };
    if (std::ranges::any_of(products_, is_like)) continue;
    product.step = step;
    std::vector<QuantityRow> rows;
    for (const QuantityColumn& column : columns_) {
      const Quantity& quantity = *column.quantity;
      if (quantity.rows() != Rows::kProduct || quantity.is_checksum()) continue;
      rows.emplace_back(column).set(product);
    }
    const auto row = static_cast<int64_t>(products_.size());
    write(rows, row);
    seal(Gathered::kProductChecksums, row);
    products_.push_back(product);
  }
}

// `rows` belong to some of the columns, in their order.
void LaneRecorder::write(const std::vector<QuantityRow>& rows, int64_t at) {
  size_t c = 0;
  for (const QuantityRow& row : rows) {
    while (columns_[c].quantity != row.column().quantity || columns_[c].loss != row.column().loss) {
      ++c;
    }
    write(c, at, row.data());
  }
}

void LaneRecorder::place_checksums() {
  if (!parts_.empty()) return;
  parts_.resize(columns_.size());
  std::map<Gathered, std::map<std::string, size_t>> by_name;
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (const auto kind = checksums_of(*columns_[c].quantity)) by_name[*kind][names_[c]] = c;
  }
  for (const auto& [kind, columns] : by_name) {
    size_t part = first_part(kind);
    for (const auto& [name, column] : columns) parts_[column] = part++;
    checksums_[kind].resize(part);
  }
}

// A monitor measures one step in many: the others' rows of sites take no space.
bool LaneRecorder::is_left_out(size_t column, const void* row) const {
  if (!extent_.is_live || !columns_[column].quantity->is_wide()) return false;
  const QuantityRow absent(columns_[column]);
  return std::memcmp(row, absent.data(), absent.bytes()) == 0;
}

void LaneRecorder::write(size_t column, int64_t at, const void* row) {
  GrowingDataset& dataset = datasets_[column];
  is_left_out(column, row) ? dataset.grow_to(at) : dataset.write(at, row);
  if (parts_.empty()) return;
  checksums_.at(*checksums_of(*columns_[column].quantity)).at(parts_[column]) =
      row_checksum(names_[column], at, row, dataset.row_bytes());
}

void LaneRecorder::seal(Gathered checksums, int64_t at) {
  const size_t column = column_of(checksums);
  if (column < datasets_.size()) datasets_[column].write(at, checksums_.at(checksums).data());
}

void LaneRecorder::write_alone(size_t column, int64_t at, const void* row) {
  if (parts_.empty()) return datasets_[column].write(at, row);
  const Gathered kind = *checksums_of(*columns_[column].quantity);
  const GrowingDataset& sums = dataset(kind);
  if (at < sums.rows()) sums.read(at, checksums_.at(kind).data());
  write(column, at, row);
  seal(kind, at);
}

void LaneRecorder::write_step(int64_t step, bool is_measured, const LaneStep& lane) {
  if (!lane.alive && !died_) {
    died_ = true;
    hdf5::write_attribute(group_.id(), run_names::kDiedAt, step);
    hdf5::write_attribute(group_.id(), run_names::kDiedOf, static_cast<int64_t>(lane.died_of));
  }
  write(step_rows(columns_, lane), step);
  if (!parts_.empty()) {
    checksums_.at(Gathered::kStepChecksums)[0] = death_checksum(step, died_, lane.died_of);
  }
  seal(Gathered::kStepChecksums, step);
  if (lane.alive) write_products(step, lane.device);
  seal(Gathered::kSecondsChecksums, step);
  if (!extent_.is_live && extent_.measuring.samples_sums(step)) {
    const int64_t row = extent_.measuring.sample_number(step);
    write(Gathered::kSampleSteps, row, &step);
    write(sample_rows(columns_, lane), row);
    seal(Gathered::kSampleChecksums, row);
  }
  if (keeps_histogram(step, is_measured, lane)) write_histogram(step, lane);
  if (extent_.is_live) return;  // without sums of blocks
  add_to_sums(lane);
  if ((step + 1) % kHistogramBlock == 0) {
    write_sums(step + 1);
    write_length(step + 1);  // counts when the step is complete
    sums_.assign(sums_.size(), 0);
  }
}

bool LaneRecorder::drop_short_row(int64_t step) {
  const int64_t block = step / kHistogramBlock;
  const size_t block_steps = column_of(Gathered::kBlockSteps);
  if (block >= datasets_[block_steps].rows()) return false;
  const int64_t nothing = 0;
  write_alone(block_steps, block, &nothing);
  return true;
}

void LaneRecorder::pass_step(int64_t step, const LaneStep& lane) {
  add_to_sums(lane);
  if ((step + 1) % kHistogramBlock == 0) sums_.assign(sums_.size(), 0);
}

std::vector<uint64_t> LaneRecorder::recorded_bits_hash(int64_t step) const {
  std::vector<uint64_t> row(static_cast<size_t>(site_count_));
  datasets_.at(column_of(&TensorStats::bits_hash)).read(step, row.data());
  return row;
}

double LaneRecorder::recorded_loss(int64_t step) const {
  double loss = 0;
  datasets_.at(column_of(&LaneStep::loss)).read(step, &loss);
  return loss;
}

bool LaneRecorder::keeps_histogram(int64_t step, bool is_measured, const LaneStep& lane) const {
  if (!lane.alive || !is_measured) return false;
  if (extent_.is_live) return true;
  if (step < kHistogramFirstSteps || extent_.measuring.keeps_histogram(step)) return true;
  for (const ScalerRecord& scaler : lane.scalers) {
    if (scaler.skipped) return true;
  }
  for (int64_t s = 0; s < site_count_; ++s) {
    const SiteRecord* site = measured_site(lane, static_cast<size_t>(s));
    if (site == nullptr) continue;
    if (site->stats.nonfinite_seen(extent_.stat_exempt[static_cast<size_t>(s)])) return true;
  }
  return false;
}

void LaneRecorder::write_histogram(int64_t step, const LaneStep& lane) {
  std::vector<uint32_t> bins(static_cast<size_t>(site_count_ * kHistogramBins), 0);
  for (int64_t s = 0; s < site_count_; ++s) {
    const SiteRecord* site = measured_site(lane, static_cast<size_t>(s));
    if (site == nullptr) continue;
    uint32_t* out = bins.data() + s * kHistogramBins;
    for (int b = 0; b < kHistogramBins; ++b) {
      constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();  // of many ranks
      out[b] = static_cast<uint32_t>(
          std::min(site->stats.exponent_histogram[static_cast<size_t>(b)], kMost));
    }
  }
  write(Gathered::kHistograms, histogram_records_, bins.data());
  write(Gathered::kHistogramSteps, histogram_records_, &step);
  seal(Gathered::kHistogramChecksums, histogram_records_);
  ++histogram_records_;
}

void LaneRecorder::add_to_sums(const LaneStep& lane) {
  for (int64_t s = 0; s < site_count_; ++s) {
    const SiteRecord* site = measured_site(lane, static_cast<size_t>(s));
    if (site == nullptr) continue;
    uint64_t* out = sums_.data() + s * kHistogramBins;
    const uint64_t* bins = site->stats.exponent_histogram.data();
    for (int b = 0; b < kHistogramBins; ++b) out[b] += bins[b];
  }
}

void LaneRecorder::write_sums(int64_t steps_done) {
  const int64_t block = (steps_done - 1) / kHistogramBlock;
  write_alone(column_of(Gathered::kBlockSums), block, sums_.data());
  const int64_t nothing = 0;
  const size_t block_steps = column_of(Gathered::kBlockSteps);
  if (block >= datasets_[block_steps].rows()) write_alone(block_steps, block, &nothing);
}

void LaneRecorder::write_length(int64_t steps_done) {
  const int64_t block = (steps_done - 1) / kHistogramBlock;
  const int64_t covered = steps_done - block * kHistogramBlock;
  write_alone(column_of(Gathered::kBlockSteps), block, &covered);
}

void LaneRecorder::write_unfinished_sums(int64_t steps_done) {
  if (!extent_.is_live && steps_done % kHistogramBlock != 0) write_sums(steps_done);
}
void LaneRecorder::write_unfinished_length(int64_t steps_done) {
  if (!extent_.is_live && steps_done % kHistogramBlock != 0) write_length(steps_done);
}

void LaneRecorder::write_evaluation(int64_t row, const Evaluation& evaluation) {
  std::vector<QuantityRow> rows;
  for (const QuantityColumn& column : columns_) {
    const Quantity& quantity = *column.quantity;
    if (quantity.rows() != Rows::kEvaluation || quantity.is_checksum()) continue;
    rows.emplace_back(column).set(evaluation);
  }
  write(rows, row);
  seal(Gathered::kEvaluationChecksums, row);
}

}  // namespace lockstep

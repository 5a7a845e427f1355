// Compares every extent with the table of quantities before a byte is read, so that reading a file
// takes no more memory than its size justifies.
#include <algorithm>
#include <array>
#include <set>

#include "src/record/hdf5/link_name.h"
#include "src/record/run/quantities.h"
#include "src/record/run/run_checksum.h"
#include "src/record/run/run_file_impl.h"
#include "src/record/run/run_file_names.h"

namespace lockstep {
namespace {

using Kind = StoredValue::Kind;

// Run files are not compressed; those that a user has compressed may grow this much.
constexpr uint64_t kLeastBytes = 64 << 20, kGrowth = 8;
constexpr int64_t kCompleteVersion = 3;  // from here on files have all quantities that apply

Kind kind_of(Storage storage) {
  constexpr std::array kKinds = {Kind::kF64, Kind::kU64, Kind::kI64,
                                 Kind::kU32, Kind::kI32, Kind::kU8};
  return kKinds.at(static_cast<size_t>(storage));
}

// The shapes of a row that a quantity may have.
std::vector<Shape> row_shapes(const Quantity& quantity, const LaneInfo& lane,
                              const RunExtents& extents, const Shape& found) {
  const auto scalers = static_cast<int64_t>(lane.scaler_count());
  switch (quantity.axis) {
    case Axis::kOne:
    case Axis::kLoss:
      return {{}};
    case Axis::kGroup:
      return {{extents.groups}};
    case Axis::kParameter:  // one for each parameter of the graph, which is not parsed here
    case Axis::kDataset:    // add_checksums()
      return {{found.size() == 1 ? found[0] : 1}};
    case Axis::kScaler:
      return {{scalers}, {scalers + extents.groups}};
    case Axis::kWatched:
      return {{extents.watched}};
    case Axis::kSite:
      return {{extents.sites}};
    case Axis::kSiteAndBin:
      return {{extents.sites, kHistogramBins}};
  }
  return {};
}

void check_dataset(const StoredFields& fields, const std::string& path, const Quantity& quantity,
                   const LaneInfo& lane, const RunExtents& extents, RunDatasets& datasets) {
  const StoredValue* value = fields.value();
  if (value == nullptr) return;
  if (value->shape.empty()) return fields.problem("has no rows");
  RunDataset dataset;
  dataset.where = path;
  dataset.quantity = &quantity;
  dataset.kind = value->kind;
  dataset.rows = value->shape[0];
  dataset.row_shape = {value->shape.begin() + 1, value->shape.end()};
  const auto shapes = row_shapes(quantity, lane, extents, dataset.row_shape);
  if (dataset.kind != kind_of(quantity.storage()) ||
      std::ranges::find(shapes, dataset.row_shape) == shapes.end()) {
    return fields.problem(fmt::format("must have rows of {} {}, has others",
                                      to_string(shapes.front()), to_string(quantity.storage())));
  }
  if (quantity.rows() == Rows::kStep && dataset.rows < extents.steps) {
    return fields.problem(
        fmt::format("has {} rows, {} steps are complete", dataset.rows, extents.steps));
  }
  const uint64_t most = kLeastBytes + kGrowth * extents.file_bytes;
  dataset.row_bytes =
      bytes_of(dataset.kind) * static_cast<size_t>(element_count(dataset.row_shape));
  // A monitor's rows of sites may be left out or compressed; they are read one at a time.
  const bool is_sparse = lane.is_live() && quantity.is_wide();
  const uint64_t bytes =
      is_sparse ? dataset.row_bytes : bytes_of(dataset.kind) * static_cast<uint64_t>(value->size());
  if (bytes > most) {
    return fields.problem(
        fmt::format("has {} bytes, at most {} fit a file of this size", bytes, most));
  }
  datasets.emplace(path, std::move(dataset));
}

// In a closed run rows of one kind are as many as their checksums.
void add_checksums(const StoredFields& lane, const std::string& prefix, bool is_closed,
                   RunDatasets& datasets) {
  std::map<Gathered, size_t> parts;
  std::vector<RunDataset*> all;
  for (auto at = datasets.lower_bound(prefix); at != datasets.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    all.push_back(&at->second);
  }
  for (RunDataset* dataset : all) {
    dataset->name = dataset->where.substr(prefix.size());
    const auto kind = checksums_of(*dataset->quantity);
    if (!kind) continue;
    const auto found = datasets.find(prefix + quantity_of(*kind).name);
    if (found == datasets.end()) continue;  // a problem already
    dataset->checksums = &found->second;
    dataset->part = first_part(*kind) + parts[*kind]++;
    const int64_t rows = found->second.rows;
    if (!is_closed || dataset->quantity->rows() == Rows::kStep || dataset->rows == rows) continue;
    lane.problem(
        fmt::format("{} has {} rows, its checksums {}", dataset->name, dataset->rows, rows));
  }
  for (const auto& [kind, count] : parts) {
    const RunDataset& sums = datasets.at(prefix + quantity_of(kind).name);
    const auto wanted = static_cast<int64_t>(first_part(kind) + count);
    if (element_count(sums.row_shape) == wanted) continue;
    lane.problem(fmt::format("{} has rows of {}, must have {}", sums.name,
                             element_count(sums.row_shape), wanted));
  }
}

}  // namespace

void check_datasets(const StoredFields& lane, const std::string& path, const LaneInfo& info,
                    const RunExtents& extents, RunDatasets& datasets) {
  std::set<std::string> missing;
  const bool is_sealed = extents.version >= run_names::kSealedVersion;
  for (const Quantity& quantity : quantities()) {
    if (quantity.is_checksum() && !is_sealed) continue;  // of a kind that is no longer read
    const size_t slash = quantity.name.find('/');
    const std::string group = slash == std::string::npos ? "" : quantity.name.substr(0, slash);
    const std::string name = group.empty() ? quantity.name : quantity.name.substr(slash + 1);
    // Absent from files of other versions, or of other runs: not measured. Every version has the
    // loss; it bounds the number of steps.
    const bool is_needed =
        quantity.source == Source(&LaneStep::loss) ||
        (quantity.is_required(info) && extents.version >= kCompleteVersion) ||
        (quantity.is_of_watched() && extents.watched > 0) ||
        (quantity.is_checksum() && !quantity.is_of_device() && !info.is_live()) ||
        (quantity.is_of_device() && !info.device_sums.empty());
    if (!group.empty() && !lane.has(group)) {
      if (is_needed && missing.insert(group).second) lane.problem(group + " is missing");
      continue;
    }
    const StoredFields parent = group.empty() ? lane : lane.child(group);
    const std::string below = path + "/" + (group.empty() ? "" : group + "/");
    if (quantity.axis == Axis::kLoss) {
      for (const std::string& loss : parent.children()) {
        check_dataset(parent.child(loss), below + hdf5::escape_link(loss), quantity, info, extents,
                      datasets);
      }
      continue;
    }
    const StoredFields found = is_needed ? parent.child(name) : parent.optional(name);
    check_dataset(found, below + name, quantity, info, extents, datasets);
  }
  if (is_sealed) add_checksums(lane, path + "/", extents.is_closed, datasets);
}

}  // namespace lockstep

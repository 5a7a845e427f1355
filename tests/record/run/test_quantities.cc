// The table of recorded quantities: its invariants, and that a lane of a run file has exactly the
// datasets of its rows.
#include "src/record/run/quantities.h"

#include <doctest/doctest.h>
#include <hdf5.h>

#include <cmath>
#include <map>
#include <set>

#include "src/record/hdf5/growing_dataset.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/run_checksum.h"
#include "src/record/run/run_reader.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep {
namespace {

using test::SyntheticRun;
using test::TemporaryFolder;

// HDF5's stored type in Storage's words: "f64", "u32", "i8".
std::string stored_type(hid_t group, const std::string& path) {
  const hdf5::Handle dataset(H5Dopen2(group, path.c_str(), H5P_DEFAULT), "open " + path);
  const hdf5::Handle type(H5Dget_type(dataset.id()), "its type");
  const std::string bits = std::to_string(8 * H5Tget_size(type.id()));
  if (H5Tget_class(type.id()) == H5T_FLOAT) return "f" + bits;
  return (H5Tget_sign(type.id()) == H5T_SGN_NONE ? "u" : "i") + bits;
}

// The paths of all datasets of a lane except the policy.
std::set<std::string> datasets_of(hid_t lane) {
  std::set<std::string> found;
  for (const std::string& name : hdf5::link_names(lane)) {
    H5O_info_t info;
    H5Oget_info_by_name(lane, name.c_str(), &info, H5P_DEFAULT);
    if (info.type == H5O_TYPE_DATASET) {
      if (name != "policy") found.insert(name);
      continue;
    }
    const hdf5::Handle group = hdf5::open_group(lane, name);
    for (const std::string& part : hdf5::link_names(group.id())) found.insert(name + "/" + part);
  }
  return found;
}

TEST_CASE("rows of the table: names are unique, have help, and fit their source") {
  std::set<std::string> names;
  for (const Quantity& q : quantities()) {
    CAPTURE(q.name);
    CHECK(names.insert(q.name).second);
    CHECK(!q.help.empty());
    CHECK(&quantity_of(q.source) == &q);
    const bool is_row = std::holds_alternative<std::vector<double> LaneStep::*>(q.source);
    CHECK(is_row ==
          (q.axis == Axis::kGroup || q.axis == Axis::kParameter || q.axis == Axis::kLoss));
    CHECK((q.axis == Axis::kLoss) == q.name.ends_with("/*"));
    if (q.at != At::kEverySite) CHECK(q.axis == Axis::kSite);
  }
  for (const Statistic& statistic : statistics()) {
    const bool is_count = statistic.kind() == StatisticKind::kCount;
    const Source source = std::visit([](auto member) { return Source(member); }, statistic.member);
    const Quantity& q = quantity_of(source);
    CHECK(q.statistic == &statistic);
    CHECK(q.name == (is_count ? "counts/" : "moments/") + std::string(statistic.name));
    CHECK(q.comparison == (is_count ? Compared::kExact : Compared::kTolerance));
  }
}

TEST_CASE("axes and types in words") {
  const auto words = [](const char* name) {
    const Quantity& q = *std::ranges::find(quantities(), name, &Quantity::name);
    return axes_text(q) + ": " + std::string(to_string(q.storage()));
  };
  CHECK(words("loss") == "step: f64");
  CHECK(words("lr") == "step, group: f64");
  CHECK(words("loss_scale/found_inf") == "step, scaler: u8");
  CHECK(words("watched/count") == "step, value: u64");
  CHECK(words("counts/nan") == "step, site: u64");
  CHECK(words("sums/swamped") == "sample, site: u64");
  CHECK(words("eval/steps_done") == "evaluation: i64");
  CHECK(words("exponent_histogram") == "histogram, site, bin: u32");
  CHECK(words("exponent_histogram_50_steps") == "block: i64");
}

TEST_CASE("a lane holds a dataset for every row, of its type and width, and no others") {
  const TemporaryFolder folder;
  SyntheticRun run(3);
  run.sites.sites[0].op = "decision";
  run.options.capture_hash = "0123";  // of a capture: with gradient norms
  run.description.watched = {"head", "log_probs"};
  run.graph.parameters = {{"w", {{2}}, true, ""}, {"b", {{2}}, true, ""}};
  run.record(folder.file("run.h5"));
  const hdf5::Handle file(H5Fopen(folder.file("run.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "");
  const hdf5::Handle lane = hdf5::open_group(file.id(), "lanes/fp32");
  std::set<std::string> wanted;
  for (const Quantity& q : quantities()) {
    if (q.axis == Axis::kLoss) continue;  // this graph has no named loss
    if (q.is_of_device()) continue;       // the lane's engine has no device
    if (q.is_of_live()) continue;         // no monitor recorded it
    CAPTURE(q.name);
    wanted.insert(q.name);
    CHECK(stored_type(lane.id(), q.name) == to_string(q.storage()));
    const std::map<Axis, std::vector<int64_t>> shapes = {{Axis::kOne, {}},
                                                         {Axis::kGroup, {1}},
                                                         {Axis::kParameter, {2}},
                                                         {Axis::kScaler, {1}},
                                                         {Axis::kWatched, {2}},
                                                         {Axis::kSite, {3}},
                                                         {Axis::kSiteAndBin, {3, kHistogramBins}}};
    const std::vector<int64_t> shape = GrowingDataset::open(lane.id(), q.name).row_shape();
    if (q.axis == Axis::kDataset) {
      const auto kind = std::get<Gathered>(q.source);
      const auto datasets = std::ranges::count_if(quantities(), [&](const Quantity& of) {
        return of.axis != Axis::kLoss && !of.is_of_device() && !of.is_of_live() &&
               checksums_of(of) == kind;
      });
      CHECK(shape == std::vector<int64_t>{datasets + static_cast<int64_t>(first_part(kind))});
      continue;
    }
    CHECK(shape == shapes.at(q.axis));
  }
  CHECK(datasets_of(lane.id()) == wanted);
}

TEST_CASE("a lane that died has absent numbers") {
  const TemporaryFolder folder;
  SyntheticRun run(4);
  run.died_after = 1;
  run.description.watched = {"head"};
  run.record(folder.file("run.h5"));
  const RunFile file(folder.file("run.h5"));
  for (const Quantity& q : quantities()) {
    if (q.rows() != Rows::kStep || q.axis == Axis::kLoss || q.axis == Axis::kParameter) continue;
    if (q.is_checksum()) continue;  // of these absent numbers
    CAPTURE(q.name);
    const Numbers dead = file.numbers_at(1, q, 3);
    for (const uint64_t n : dead.integers) CHECK(n == 0);
    for (const double x : dead.reals) {
      const bool is_real = q.storage() == Storage::kF64;
      CHECK((x == q.absent || (std::isnan(q.absent) && (is_real ? std::isnan(x) : x == 0))));
    }
  }
}

}  // namespace
}  // namespace lockstep

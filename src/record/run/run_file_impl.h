// The inside of the reader of run files, shared by run_file_reader.cc (the file's description),
// run_datasets.cc (the extents of its datasets), run_file_numbers.cc (quantities by name),
// run_file_records.cc (records by step) and run_file_device.cc (the work of lanes' devices).
#pragma once

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "src/core/error.h"
#include "src/record/hdf5/sandboxed_file.h"
#include "src/record/hdf5/stored_fields.h"
#include "src/record/run/quantity_rows.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

// Calls work(member) if the quantity is a member of Record.
template <typename Record, typename Work>
void if_member(const Quantity& quantity, Work work) {
  std::visit(
      [&](const auto& source) {
        if constexpr (std::is_invocable_v<decltype(source), Record&>) work(source);
      },
      quantity.source);
}

// "counts" of "counts/to_zero".
inline std::string_view group_of(const Quantity& quantity) {
  return std::string_view(quantity.name).substr(0, quantity.name.find('/'));
}

// A dataset of a lane: what the file says of it, and the rows that were read last.
struct RunDataset {
  std::string where;  // below the run's group
  std::string name;   // below the lane's
  const Quantity* quantity = nullptr;
  // Of its rows, and which number of a row; null: the file has none, or this is one of them.
  const RunDataset* checksums = nullptr;
  size_t part = 0;
  StoredValue::Kind kind = StoredValue::Kind::kU8;
  int64_t rows = 0;
  Shape row_shape;
  size_t row_bytes = 0;
  // Steps are read in order, so a narrow row is read together with those after it.
  mutable std::vector<char> held;
  mutable std::vector<bool> held_proven;  // by row: it has its checksum
  mutable int64_t held_begin = 0, held_rows = 0;
};
using RunDatasets =
    std::map<std::string, RunDataset, std::less<>>;  // by path below the run's group

struct LaneColumn {
  QuantityColumn column;
  const RunDataset* from = nullptr;
};

// What the extents of a run's datasets depend on.
struct RunExtents {
  int64_t version = 0, steps = 0, sites = 0, groups = 1, watched = 0;
  uint64_t file_bytes = 0;
  bool is_closed = false;
};
// Checks every dataset of a lane against the table of quantities and adds it to `datasets`, with
// the checksums of its rows. `path` is the lane's, below the run's group.
void check_datasets(const StoredFields& lane, const std::string& path, const LaneInfo& info,
                    const RunExtents& extents, RunDatasets& datasets);

// Rows that are not those that were written.
class RowDamage : public hdf5::Error {
 public:
  using hdf5::Error::Error;
};

struct RunFile::Impl {
  std::string path;
  int64_t most_steps = std::numeric_limits<int64_t>::max();  // later ones are not read
  std::string damage;                                        // RunFile::damage()
  mutable std::unique_ptr<SandboxedFile> file;  // replaced where a writer moved what it holds
  uint64_t file_bytes = 0;
  std::string group;  // of the seed that is read: "" or "/seeds/8"
  std::vector<uint64_t> seeds;
  RunIdentity identity;
  int64_t version = 0, steps = 0;
  bool is_closed = false;  // its writer ended: no kill left rows that are not complete
  RunOptions options;
  std::string command_line, data, batches_hash, graph_json, products_json;
  std::string verification_json;
  std::map<std::string, std::string> environment;
  ScriptLines lines;
  std::vector<std::string> watched;
  SiteTable sites;
  std::vector<LaneInfo> lanes;
  RunDatasets datasets;
  mutable std::vector<bool> measured;                      // by step, once it was asked for
  mutable std::map<int, std::vector<LaneColumn>> columns;  // by lane, once it was asked for
  mutable std::map<int, std::vector<int64_t>> sampled;     // steps that sampled sums, the same

  template <typename Work>
  auto guard(Work work) const {
    try {
      return work();
    } catch (const InputError&) {
      throw;
    } catch (const RowDamage& error) {
      damaged(error.what(),
              "`lockstep report --damaged`, or read_run's damaged=True, reads the steps before it");
    } catch (const hdf5::Error& error) {
      damaged(error.what());
    } catch (const SandboxError& error) {
      if (error.is_of_machine()) unreadable(error.what());
      damaged(fmt::format("reading it in a separate process failed: {}", error.what()));
    } catch (const std::runtime_error& error) {
      damaged(fmt::format("reading it in a separate process failed: {}", error.what()));
    }
  }
  [[noreturn]] void damaged(
      std::string_view why,
      const std::string& hint = "is it a complete copy of the file that replay wrote?") const;
  [[noreturn]] void unreadable(std::string_view why) const;  // for no fault of its own
  // The path, or the file's rules, are broken; the file is not read.
  void require_readable() const;
  void read(bool allow_empty, std::optional<uint64_t> seed);  // both of these
  void open(std::optional<uint64_t> seed);
  // Reads everything but the datasets' rows. Throws: InputError with all problems.
  void read_description(bool allow_empty, std::optional<uint64_t> seed);
  void require_none(const ProblemList& problems) const;  // Throws: DamagedFile
  void read_root(const StoredFields& root);
  // The seeds of all runs, and the group of `seed`; false: the file lacks it.
  bool read_seeds(const StoredFields& root, std::optional<uint64_t> seed);
  void read_lane(const StoredFields& lane, const std::string& name);
  // The lanes lived as long as their attributes say. Throws: RowDamage.
  void check_deaths() const;

  // All below throw InputError for a step that is not recorded, otherwise hdf5::Error.
  void check_step(int64_t step) const;
  std::string lane_path(int lane, std::string_view name) const;
  bool has(int lane, std::string_view name) const;
  // Absent, as a lane's files may be; false also where it is missing from a file that must have it.
  bool lacks(int lane, const Quantity& quantity) const;
  const RunDataset& dataset(int lane, std::string_view name) const;
  void require_rows(const RunDataset& from, int64_t begin, int64_t count) const;
  // Row `row` as bytes, until the next row of this dataset is asked for.
  const char* held_row(const RunDataset& from, int64_t row) const;
  void read_rows(const RunDataset& from, int64_t begin, int64_t count, void* out) const;
  // Throws: RowDamage if this row does not have its checksum; nothing if the file has none.
  void require_whole(const RunDataset& from, int64_t row, const char* bytes) const;
  void require_alive(const LaneInfo& lane, const RunDataset& checksums, int64_t step) const;
  // Rows [begin, begin + count), all numbers of a row one after the other. Requires: T is the
  // dataset's own type.
  template <typename T>
  std::vector<T> rows_of(int lane, std::string_view name, int64_t begin, int64_t count) const;
  // The lane's datasets of quantities that steps and samples have, but checksums.
  const std::vector<LaneColumn>& columns_of(int lane) const;
  std::vector<LaneColumn> find_columns(int lane) const;
  // One row of each of these columns, until the next row is asked for.
  std::vector<StoredRow> stored_rows(int lane, int64_t row,
                                     const std::function<bool(const Quantity&)>& wanted) const;
  bool is_alive(int lane, int64_t step) const;
  // The names of the lane's datasets of losses, in the graph's order.
  std::vector<std::string> loss_datasets(int lane) const;
  // Steps that sampled sums of products.
  const std::vector<int64_t>& sampled_steps(int lane) const;
  // What a step's rows say of the lane as a whole, of the quantities that are wanted.
  void read_lane_rows(int lane, int64_t step, const std::function<bool(const Quantity&)>& wanted,
                      LaneStep& into) const;
  void read_histograms(int lane, int64_t step, LaneStep& into) const;
  Numbers numbers(int lane, const Quantity& quantity, int64_t begin, int64_t count) const;
  // Fills a member of every record from row `row` of its dataset.
  template <typename Record>
  void fill_members(int lane, int64_t row, std::vector<Record>& records) const;
  // The number of rows that all datasets of these quantities have.
  int64_t common_rows(int lane, Rows rows) const;
  // The steps of the rows of such a dataset, as far as they are complete.
  std::vector<int64_t> complete_steps(int lane, Gathered steps) const;
  std::vector<int64_t> covered_blocks(int lane) const;
  // The kinds of products of the complete steps; empty without a device.
  std::vector<DeviceProduct> device_products(int lane) const;
  // The first damaged row of a dataset of the lane, and what is wrong with it.
  struct DamagedRow {
    int64_t row = 0;
    std::string problem;
  };
  // How many of its rows belong to complete steps.
  bool is_whole(int lane, Rows kind, int64_t row) const;
  int64_t complete_rows(int lane, const RunDataset& from) const;
  std::optional<DamagedRow> first_damage(int lane, const RunDataset& from, int64_t& rows) const;
  // The first damage of the run, in words, and the complete steps before it; empty: none.
  std::pair<std::string, int64_t> find_damage() const;
  // The steps that nothing of these rows, from `row` on, is part of.
  int64_t steps_before(int lane, const RunDataset& from, int64_t row) const;
};

}  // namespace lockstep

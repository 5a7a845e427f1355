// Inside the reader of run files, for run_file_reader.cc (the file's description) and
// run_file_numbers.cc (the recorded quantities).
#pragma once

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/record/hdf5/growing_dataset.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/run_file.h"

namespace lockstep {

struct RunFile::Impl {
  std::string path;
  hdf5::Handle file, root;  // root: the group of the seed that is read
  std::vector<uint64_t> seeds;
  std::vector<std::string> other_hashes;
  int64_t version = 0, steps = 0;
  RunOptions options;
  std::string command_line, data, batches_hash, graph_json, products_json, verification_json;
  std::map<std::string, std::string> environment;
  SiteTable sites;
  std::vector<LaneInfo> lanes;
  mutable std::map<std::string, GrowingDataset> datasets;  // opened so far, by path

  template <typename Work>
  auto guard(Work work) const {
    try {
      return work();
    } catch (const hdf5::Error& error) {
      damaged(error.what());
    } catch (const nlohmann::json::exception& error) {
      damaged(error.what());
    }
  }
  [[noreturn]] void damaged(const std::string& why) const {
    throw InputError(fmt::format("run file '{}' is damaged: {}", path, why),
                     "is it a complete copy of the file that replay wrote?");
  }
  void open(bool allow_empty, std::optional<uint64_t> seed);
  void read_seeds(std::optional<uint64_t> seed);  // also opens `root`
  void read_description();

  // All below throw InputError for a step that is not recorded, otherwise hdf5::Error.
  void check_step(int64_t step) const;
  std::string lane_path(int lane, std::string_view name) const;
  bool has(int lane, std::string_view name) const;
  const GrowingDataset& dataset(int lane, std::string_view name) const;
  // Rows [begin, begin + count), all numbers of a row one after the other. Requires: T is the
  // dataset's own type.
  template <typename T>
  std::vector<T> rows_of(int lane, std::string_view name, int64_t begin, int64_t count) const;
  // A row that has `per_site` numbers for every site; otherwise hdf5::Error.
  template <typename T>
  std::vector<T> site_row(int lane, std::string_view name, int64_t row, size_t per_site = 1) const;
  // A row of a statistic of tensors. Throws: InputError with a did-you-mean.
  template <typename T>
  std::vector<T> statistic(int lane, const char* group, std::string_view name, int64_t step) const;
  void require_statistic(int lane, std::string_view group, std::string_view name) const;
  Numbers numbers(int lane, const Quantity& quantity, int64_t begin, int64_t count) const;
  // All rows of a quantity with a row in every step.
  template <typename T>
  std::vector<T> series(int lane, const Source& source) const;
  // Fills a member of every record from row `row` of its dataset.
  template <typename Record>
  void fill_members(int lane, int64_t row, std::vector<Record>& records) const;
  // The number of rows that all datasets of these quantities have.
  int64_t common_rows(int lane, Rows rows) const;
  // The steps of the rows of such a dataset, as far as they are complete.
  std::vector<int64_t> complete_steps(int lane, Gathered steps) const;
  std::vector<int64_t> covered_blocks(int lane) const;
};

}  // namespace lockstep

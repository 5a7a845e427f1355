// The kinds of data that a data spec KIND[:ARGUMENT] can name, one row per kind. A new kind is one
// file that defines its row's function, and its name in the list of sources.cc.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/dataset.h"

namespace lockstep {

struct DataSource {
  std::string_view kind;      // "mnist"
  std::string_view argument;  // the text after the colon, e.g. "DIR"; in brackets: optional
  std::string_view help;
  std::vector<Task> tasks;  // that it serves
  // Throws: InputError with every problem of the files.
  std::unique_ptr<DataSet> (*open)(std::string_view argument, const DataRequest& request);
};
std::span<const DataSource> data_sources();
// The row of a data spec's kind. Throws: InputError with a did-you-mean.
const DataSource& find_data_source(std::string_view spec);

// "synthetic[:COUNT]", "mnist:DIR", "fashion-mnist:DIR" (IDX files, plain or .gz; the t10k pair
// alone is split 80/20 in file order, else train files train and t10k files are held out),
// "cifar10:DIR" (binary batches), "shapes[:COUNT]", "text:FILE", "grammar[:COUNT]".
// Throws: InputError: missing or truncated file, wrong magic, label out of range, unknown kind, a
// kind that does not serve the task.
std::unique_ptr<DataSet> open_data_set(std::string_view spec, const DataRequest& request);

// The number after "synthetic:", "shapes:" ...; `fallback` if there is none.
// Throws: InputError unless it is an integer in low..high; the message names `kind`.
int64_t parse_example_count(std::string_view kind, std::string_view argument, int64_t fallback,
                            int64_t low, int64_t high);

}  // namespace lockstep

// Which kinds of data can a data spec name?
// KIND[:ARGUMENT], one row per kind. A new kind is one file with its open function, one declaration
// here and one row in dataset.cc.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "src/train/data/dataset.h"

namespace lockstep {

struct DataSource {
  std::string_view kind;      // "mnist"
  std::string_view argument;  // what stands behind the colon, e.g. "DIR"; in brackets: optional
  std::string_view help;
  // Throws: InputError with every problem of the files.
  std::unique_ptr<DataSet> (*open)(std::string_view argument, uint64_t seed);
};
std::span<const DataSource> data_sources();

std::unique_ptr<DataSet> open_synthetic(std::string_view argument, uint64_t seed);
std::unique_ptr<DataSet> open_mnist(std::string_view argument, uint64_t seed);
std::unique_ptr<DataSet> open_fashion_mnist(std::string_view argument, uint64_t seed);
std::unique_ptr<DataSet> open_cifar10(std::string_view argument, uint64_t seed);

}  // namespace lockstep

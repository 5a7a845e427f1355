// A chart's data as rows of a table, numbers with all digits: one row per point, so that a reader
// can filter and pivot. Not measured: an empty cell; not finite: nan, inf, -inf.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/writers/chart.h"

namespace lockstep {

using CsvRows = std::vector<std::vector<std::string>>;

CsvRows chart_csv(const Chart& chart);  // the first row: the columns' names
std::string_view chart_kind(const Chart& chart);

}  // namespace lockstep

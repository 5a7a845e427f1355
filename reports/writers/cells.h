// Cells of tables: text as number_text.h writes it, and the raw number for files.
#pragma once

#include <cstdint>

#include "reports/writers/block.h"

namespace lockstep {

// A measure that was not taken (NaN) has no number, only "-".
Cell percent_cell(double rate);
Cell number_cell(double value);
Cell error_cell(double error);  // two digits
Cell scale_cell(double scale);
Cell seconds_cell(double seconds);
Cell loss_cell(double loss);  // NaN is a loss that is not finite
Cell count_cell(uint64_t count);
Cell bytes_cell(int64_t bytes);

}  // namespace lockstep

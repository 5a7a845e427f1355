// See cells.h.
#include "reports/writers/cells.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "reports/writers/number_text.h"
#include "src/core/bytes_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

Cell measured(std::string text, double value) {
  return std::isnan(value) ? Cell(std::move(text)) : Cell(std::move(text), value);
}

}  // namespace

Cell percent_cell(double rate) {
  return measured(percent(rate), rate);
}
Cell number_cell(double value) {
  return measured(short_number(value), value);
}
Cell error_cell(double error) {
  return measured(std::isnan(error) ? "-" : fmt::format("{:.2g}", error), error);
}
Cell scale_cell(double scale) {
  return measured(scale_text(scale), scale);
}
Cell seconds_cell(double seconds) {
  return measured(seconds_text(seconds), seconds);
}
Cell loss_cell(double loss) {
  return {loss_text(loss), loss};
}
Cell count_cell(uint64_t count) {
  return {with_thousands(count), static_cast<double>(count)};
}
Cell bytes_cell(int64_t bytes) {
  return {bytes_text(bytes), static_cast<double>(bytes)};
}

}  // namespace lockstep

// Parts of a large model: what each lane does to each of them, and through it to the model's loss.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/run/section.h"
#include "reports/writers/cells.h"

namespace lockstep {
namespace {

Blocks write_parts(const Report& report) {
  size_t most = 0;
  bool has_spread = false, has_second = false;
  for (const LaneReport& lane : report.lanes) {
    most = std::max(most, lane.parts.size());
    for (const PartEffect& part : lane.parts) {
      has_spread = has_spread || !std::isnan(part.spread);
      has_second = has_second || !std::isnan(part.second_order);
    }
  }
  TableBlock table;
  constexpr bool kOptional = true;
  table.columns = {{"part", Align::kLeft},
                   {"lane", Align::kLeft},
                   {"output"},
                   {"dx", Align::kRight, kOptional},
                   {"dW"},
                   {"loss"}};
  if (has_spread) table.columns.push_back({"+-"});
  if (has_second) table.columns.push_back({"1st order", Align::kRight, kOptional});
  table.columns.insert(table.columns.end(), {{"to zero"},
                                             {"too large"},
                                             {"octaves left", Align::kRight, kOptional},
                                             {"most of it in", Align::kLeft, kOptional}});
  for (size_t i = 0; i < most; ++i) {
    for (const LaneReport& lane : report.lanes) {
      if (i >= lane.parts.size() || lane.parts[i].batches == 0) continue;
      const PartEffect& part = lane.parts[i];
      std::vector<Cell> row = {part.name,
                               lane.info.name,
                               error_cell(part.output_error),
                               error_cell(part.input_gradient_error),
                               error_cell(part.weight_gradient_error),
                               part.nonfinite == part.batches
                                   ? Cell("not finite")
                                   : Cell(fmt::format("{:+.2g}", part.effect()))};
      if (has_spread) row.push_back(error_cell(part.spread));
      if (has_second) row.push_back(fmt::format("{:+.2g}", part.first_order));
      row.push_back(percent_cell(part.to_zero));
      row.push_back(percent_cell(part.out_of_range));
      row.push_back(std::isnan(part.headroom) ? Cell("")
                                              : Cell(fmt::format("{:.1f}", part.headroom)));
      row.push_back(part.layer.empty()
                        ? Cell("")
                        : Cell(fmt::format("{} ({:.0f}%)", part.layer, 100 * part.layer_share)));
      table.rows.push_back(std::move(row));
    }
  }
  if (table.rows.empty()) return {};
  table.notes = {fmt::format(
      "Each part alone, with the weights and inputs of the run. output, dx, dW: distance from fp32 "
      "relative to its size, of the output, the input's gradient, the weights' gradients. loss: "
      "change of the whole model's loss{}{}. to zero, too large: largest share at one site. "
      "octaves left: from the largest magnitude to the largest number of its format. most of it "
      "in: the "
      "layer whose roundings move the loss most, with its share. Changes of several parts do not "
      "simply add up. The one-ulp twin shows what FP32 itself leaves open.",
      has_second ? ", to first order with the square of the change of each token's share added"
                 : ", to first order",
      has_spread ? "; +-: its standard error over the batches" : "")};
  return {table};
}

}  // namespace

Section parts_section() {
  return {.name = "parts", .title = "Parts", .in_summary = true, .write = write_parts};
}

}  // namespace lockstep

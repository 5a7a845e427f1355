// What every lane's policy would cost on a GPU, and the products that do not fill its tensor cores.
#include <fmt/format.h>

#include <algorithm>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

constexpr size_t kMostProducts = 12;

TableBlock lanes_table(const Report& report) {
  TableBlock table;
  table.columns = {{"lane", Align::kLeft}, {"time"},      {"memory"},     {"weights"}, {"masters"},
                   {"gradients"},          {"optimizer"}, {"activations"}};
  for (const LaneCost& cost : report.costs.lanes) {
    std::vector<Cell> row = {report.lanes[static_cast<size_t>(cost.lane)].info.name,
                             Cell(fmt::format("{:.2f}", cost.relative_time), cost.relative_time)};
    if (cost.memory) {
      const MemoryFacts& m = *cost.memory;
      for (const int64_t bytes : {total_bytes(m), m.weights, m.master_weights, m.gradients,
                                  m.optimizer_state + m.kahan_terms, m.activations}) {
        row.push_back(bytes_cell(bytes));
      }
    }
    row.resize(table.columns.size(), Cell("-"));
    table.rows.push_back(std::move(row));
  }
  table.notes = {fmt::format(
      "time: of {}'s step on {}, an estimate by roofline that knows no launches and no fusion. "
      "memory: of a step's tensors in the lane's formats. optimizer: its state, Kahan terms "
      "included.",
      report.reference().info.name, report.costs.gpu)};
  return table;
}

Blocks write_costs(const Report& report) {
  if (report.costs.lanes.empty()) return {};
  Blocks out = {table(lanes_table(report))};
  const std::vector<UnalignedProduct>& unaligned = report.costs.unaligned;
  if (unaligned.empty()) {
    out.push_back(paragraph("All products fill the tensor cores' tiles in 16 bits."));
    return out;
  }
  out.push_back(paragraph(fmt::format(
      "{} of {} products do not fill the tensor cores' tiles in 16 bits: extents should be "
      "multiples of {}.",
      unaligned.size(), report.costs.products, kAlignment16Bit)));
  TableBlock products;
  products.name = "unaligned";
  products.columns = {{"layer", Align::kLeft}, {"product", Align::kLeft}, {"why", Align::kLeft}};
  for (size_t i = 0; i < std::min(unaligned.size(), kMostProducts); ++i) {
    const UnalignedProduct& one = unaligned[i];
    products.rows.push_back({one.layer.empty() ? "-" : one.layer, one.op, one.extents});
  }
  if (unaligned.size() > kMostProducts) {
    products.notes.push_back(fmt::format("... and {} more", unaligned.size() - kMostProducts));
  }
  out.push_back(table(std::move(products)));
  return out;
}

}  // namespace

Section costs_section() {
  return {.name = "costs",
          .title = "Estimated time and memory",
          .in_summary = false,
          .write = write_costs,
          .only_html = true};
}

}  // namespace lockstep

// Lanes on a GPU beside the software lanes that model the GPU: whether the bits are the same, where
// the two part and why, and how far apart they are.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reports/cells.h"
#include "reports/number_text.h"
#include "reports/section.h"

namespace lockstep {
namespace {

constexpr size_t kMostRows = 8;

std::string in_steps(const Report& report) {
  return counted(static_cast<uint64_t>(report.measured_steps()), "step");
}

Paragraph answer(const Report& report, const LaneReport& lane, const HardwarePair& pair) {
  const std::string& model = report.lanes[static_cast<size_t>(pair.model_lane)].info.name;
  if (pair.first_step < 0) {
    return {fmt::format("{} has the bits of {} in all {} tensors of {}.", lane.info.name, model,
                        pair.tensors, in_steps(report)),
            Tone::kGood};
  }
  std::string text = fmt::format(
      "{} has the bits of {} in {} of {} tensors of {}; their losses are at most {:.1e} of their "
      "size apart.",
      lane.info.name, model, pair.same, pair.tensors, in_steps(report), pair.loss_gap);
  const auto split = std::ranges::count_if(pair.partings, [](const Parting& parting) {
    return std::ranges::any_of(parting.products,
                               [](const DeviceProduct& p) { return p.most_parts > 1; });
  });
  text += fmt::format(" They part in step {}, in {}", pair.first_step,
                      counted(pair.partings.size(), "place"));
  text += split == 0 ? "." : fmt::format("; in {} of them the library may split sums.", split);
  return {std::move(text)};
}

std::string size_text(const DeviceProduct& p) {
  return fmt::format("{}x{}x{}{}", p.m, p.n, p.k,
                     p.batch > 1 ? fmt::format(", batch {}", p.batch) : "");
}

// Why the bits of a place differ, as far as the library's algorithm tells.
std::string reason(const HardwarePair& pair, const Parting& parting) {
  if (parting.products.empty()) return "no product on the device: an unmeasured value differs";
  int64_t parts = 1;
  for (const DeviceProduct& product : parting.products) {
    parts = std::max(parts, product.most_parts);
  }
  if (pair.has_narrow_results) return "results leave the library rounded";
  if (parts > 1) return fmt::format("split-K: up to {} parts", parts);
  return "another order of k";
}

TableBlock parting_table(const Report& report, const LaneReport& lane, const HardwarePair& pair) {
  TableBlock table{.columns = {{fmt::format("parts in step {}", pair.first_step), Align::kLeft},
                               {"m x n x k", Align::kLeft},
                               {"algorithm"},
                               {"why", Align::kLeft}},
                   .rows = {},
                   .notes = {},
                   .name = lane.info.name};
  for (size_t i = 0; i < std::min(kMostRows, pair.partings.size()); ++i) {
    const Parting& parting = pair.partings[i];
    std::string sizes, algorithms;
    if (!parting.products.empty()) {
      const DeviceProduct& first = parting.products.front();
      sizes = size_text(first);
      algorithms = first.algorithm >= 0 ? fmt::format("{}", first.algorithm) : "";
      if (parting.products.size() > 1) {
        sizes += fmt::format(" and {} more", parting.products.size() - 1);
      }
    }
    table.rows.push_back(
        {report.site(parting.site).label(), sizes, algorithms, reason(pair, parting)});
  }
  if (pair.partings.size() > kMostRows) {
    table.notes.push_back(fmt::format("and {} more places", pair.partings.size() - kMostRows));
  }
  table.notes.push_back(
      "All that enters these places is equal. `[cuda] split_k = false` in the policy forbids "
      "split-K; the order of k within a chain is the library's own.");
  return table;
}

TableBlock gap_table(const Report& report, const LaneReport& lane, const HardwarePair& pair) {
  std::vector<SiteGap> widest = pair.gaps;
  std::ranges::stable_sort(widest, [](const SiteGap& x, const SiteGap& y) {
    const bool known_x = !std::isnan(x.most), known_y = !std::isnan(y.most);
    return known_x != known_y ? known_x : x.most > y.most;
  });
  TableBlock table{.columns = {{"furthest apart", Align::kLeft},
                               {"same bits", Align::kRight},
                               {"at least"},
                               {"at most"}},
                   .rows = {},
                   .notes = {},
                   .name = lane.info.name};
  for (size_t i = 0; i < std::min(kMostRows, widest.size()); ++i) {
    const SiteGap& gap = widest[i];
    table.rows.push_back({report.site(gap.site).label(),
                          fmt::format("{} of {}", gap.same, gap.tensors), number_cell(gap.least),
                          number_cell(gap.most)});
  }
  table.notes = {
      "Norm of device minus model over the norm of the FP32 reference, in the steps whose bits "
      "differ. Both lanes' errors against the reference bound it: their difference and their sum."};
  return table;
}

Blocks write_hardware(const Report& report) {
  Blocks blocks;
  for (const LaneReport& lane : report.lanes) {
    if (!lane.beside_model) continue;
    const HardwarePair& pair = *lane.beside_model;
    blocks.emplace_back(answer(report, lane, pair));
    if (pair.first_step < 0) continue;
    blocks.emplace_back(parting_table(report, lane, pair));
    blocks.emplace_back(gap_table(report, lane, pair));
  }
  return blocks;
}

}  // namespace

Section hardware_section() {
  return {"hardware", "Hardware beside its model", false, write_hardware};
}

}  // namespace lockstep

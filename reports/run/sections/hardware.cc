// Lanes on a GPU compared with the software lanes that model the GPU: whether the bits are the
// same, where the two part and why, and how far apart they are.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

constexpr size_t kMostPlaces = 8;

std::string in_steps(const Report& report) {
  return counted(static_cast<uint64_t>(report.measured_steps()), "step");
}

std::string share_of(const EqualProducts& products, const std::string& which) {
  if (products.products == 0) return "";
  return fmt::format(" {} of {} {} have the same bits.", products.same,
                     counted(static_cast<uint64_t>(products.products), "result"), which);
}

Paragraph answer(const Report& report, const LaneReport& lane, const HardwarePair& pair) {
  const std::string& model = report.lanes[static_cast<size_t>(pair.model_lane)].info.name;
  if (pair.tensors == 0) {
    return {fmt::format("{} and {} have no measured tensor in common.", lane.info.name, model),
            Tone::kDoubtful};
  }
  if (pair.first_step < 0) {
    return {fmt::format("{} has the bits of {} in all {} tensors of {}.", lane.info.name, model,
                        pair.tensors, in_steps(report)),
            Tone::kGood};
  }
  std::string text = fmt::format("{} has the bits of {} in {} of {} tensors of {}.", lane.info.name,
                                 model, pair.same, pair.tensors, in_steps(report));
  text += pair.one_broke_at >= 0
              ? fmt::format(" In step {} the loss of one of them alone is not finite.",
                            pair.one_broke_at)
              : fmt::format(" The relative difference of their losses is at most {:.1e}.",
                            pair.loss_gap);
  if (pair.follows_unmeasured) {
    text += fmt::format(
        " Step {} is the first in which bits differ, but the step before it was not measured: "
        "where they first differed is not known.",
        pair.first_step);
  }
  text += share_of(pair.one_chain, "of equal factors, in one chain by the library's numbers,");
  text += share_of(pair.in_parts, "of equal factors that the library may have split");
  return {std::move(text)};
}

std::string size_text(const DeviceProduct& p) {
  return fmt::format("{}x{}x{}{}", p.m, p.n, p.k,
                     p.batch > 1 ? fmt::format(", batch {}", p.batch) : "");
}

// Why bits differ first here, as far as the library tells.
std::string reason(const FirstDifference& place) {
  if (place.products.empty()) return "no sum on the device";
  if (place.most_parts() > 1) {
    return fmt::format("split-K, at most {} parts{}", place.most_parts(),
                       place.is_rounded ? "; rounded by the library" : "");
  }
  if (place.is_rounded) return "rounded by the library";
  return "no split reported";
}

TableBlock first_table(const LaneReport& lane, const Report& report, const HardwarePair& pair) {
  TableBlock table{
      .columns = {{fmt::format("first differences, step {}", pair.first_step), Align::kLeft},
                  {"m x n x k", Align::kLeft},
                  {"algorithm"},
                  {"why", Align::kLeft}},
      .rows = {},
      .notes = {},
      .name = lane.info.name};
  for (size_t i = 0; i < std::min(kMostPlaces, pair.first.size()); ++i) {
    const FirstDifference& place = pair.first[i];
    std::string sizes, algorithm;
    if (!place.products.empty()) {
      const DeviceProduct& first = place.products.front();
      sizes = size_text(first);
      algorithm = first.algorithm >= 0 ? fmt::format("{}", first.algorithm) : "";
      if (place.products.size() > 1)
        sizes += fmt::format(" and {} more", place.products.size() - 1);
    }
    table.rows.push_back({report.site(place.site).label(), sizes, algorithm, reason(place)});
  }
  if (pair.first.size() > kMostPlaces) {
    table.notes.push_back(fmt::format("and {} more places", pair.first.size() - kMostPlaces));
  }
  table.notes.push_back(
      "All that enters these places is equal. algorithm: cuBLASLt's number. `[cuda] split_k = "
      "false` in the policy leaves out algorithms that split sums. no split reported: the chain "
      "has "
      "another order of k, or the hardware is not as the model. no sum on the device: a value that "
      "no site shows differs.");
  return table;
}

TableBlock gap_table(const Report& report, const LaneReport& lane, const HardwarePair& pair) {
  std::vector<SiteGap> widest = pair.gaps;
  std::ranges::stable_sort(widest, [](const SiteGap& x, const SiteGap& y) {
    const bool known_x = !std::isnan(x.most), known_y = !std::isnan(y.most);
    return known_x != known_y ? known_x : x.most > y.most;
  });
  TableBlock table{
      .columns = {{"largest distances", Align::kLeft}, {"same bits"}, {"at least"}, {"at most"}},
      .rows = {},
      .notes = {},
      .name = lane.info.name};
  for (size_t i = 0; i < std::min(kMostPlaces, widest.size()); ++i) {
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
    if (!pair.first.empty()) blocks.emplace_back(first_table(lane, report, pair));
    blocks.emplace_back(gap_table(report, lane, pair));
  }
  return blocks;
}

}  // namespace

Section hardware_section() {
  return {.name = "hardware", .title = "Hardware compared with its model", .write = write_hardware};
}

}  // namespace lockstep

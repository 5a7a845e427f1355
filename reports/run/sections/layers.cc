// Where values were lost, by layer and role, one table per lane.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

// Rows below these rates are only counted: every format rounds a few values to zero, and subnormal
// values only have fewer bits.
constexpr double kShownLostRate = 1e-4;
constexpr double kShownSubnormalRate = 0.1;

bool has_something_to_say(const LayerHealth& row) {
  const SiteHealth& h = row.worst;
  return h.to_infinity + h.nan + h.saturated > 0 || h.infinite_in_steps > 0 ||
         h.first_nonfinite_step >= 0 || h.to_zero_rate() >= kShownLostRate ||
         h.to_subnormal_rate() >= kShownSubnormalRate;
}

// Has NaN and loses nothing else, away from the layer and role in which a finding says they began.
bool only_receives_nan(const Report& report, const LaneReport& lane, const LayerHealth& row) {
  const SiteHealth& h = row.worst;
  const auto is_origin = [](const Finding& f) { return f.kind <= FindingKind::kInvalid; };
  const auto is_here = [&](const Finding& f) {
    if (!is_origin(f) || f.site < 0) return false;
    const Site& site = report.site(f.site);
    return site.layer == row.layer && site.role == row.role;
  };
  return h.nan > 0 && h.to_infinity + h.saturated == 0 && h.infinite_in_steps == 0 &&
         h.to_zero_rate() < kShownLostRate && h.to_subnormal_rate() < kShownSubnormalRate &&
         std::ranges::any_of(lane.findings, is_origin) &&
         std::ranges::none_of(lane.findings, is_here);
}
// So many such rows are shown one by one; more are only counted.
constexpr size_t kShownReceivers = 3;

std::string role_text(const Site& site) {
  const bool backward_sum = site.role == Role::kAccumulator && site.scaled;
  return backward_sum ? "grad sums" : std::string(to_string(site.role));
}

struct RateColumn {
  std::string title;
  std::function<double(const SiteHealth&)> rate;
  bool always;  // shown even when all its cells are empty
};

const std::vector<RateColumn>& rate_columns() {
  static const std::vector<RateColumn> columns = {
      {"to zero", [](const SiteHealth& h) { return h.to_zero_rate(); }, true},
      {"subnormal", [](const SiteHealth& h) { return h.to_subnormal_rate(); }, true},
      {"to inf", [](const SiteHealth& h) { return SiteHealth::rate(h.to_infinity, h.count); },
       false},
      {"inf in", [](const SiteHealth& h) { return h.infinite_in_rate(); }, false},
      {"NaN", [](const SiteHealth& h) { return SiteHealth::rate(h.nan, h.count); }, false},
      {"saturated", [](const SiteHealth& h) { return h.saturated_rate(); }, false},
  };
  return columns;
}

// "36 (12.5%)"; if nothing was lost but an infinity came in, the first such step: "36 (inf)".
Cell worst_step_cell(const SiteHealth& h) {
  const int64_t step = h.worst_step >= 0 ? h.worst_step : h.first_nonfinite_step;
  if (step < 0) return "";
  const std::string what = h.worst_step >= 0 ? percent(h.worst_step_rate) : "inf";
  return {fmt::format("{} ({})", step, what), static_cast<double>(step)};
}

TableBlock layer_table(const Report& report, const std::vector<const LayerHealth*>& rows) {
  TableBlock table;
  table.columns = {{"layer", Align::kLeft}, {"role", Align::kLeft}};
  std::vector<const RateColumn*> shown;
  for (const RateColumn& column : rate_columns()) {
    const bool used = std::any_of(rows.begin(), rows.end(), [&](const LayerHealth* row) {
      return column.rate(row->worst) > 0;
    });
    if (!used && !column.always) continue;
    shown.push_back(&column);
    table.columns.push_back({column.title});
  }
  table.columns.push_back({"worst step"});
  table.columns.push_back({"worst site", Align::kLeft});
  for (const LayerHealth* row : rows) {
    const Site& site = report.site(row->site);
    std::vector<Cell> cells = {site.layer.empty() ? "-" : site.layer, role_text(site)};
    for (const RateColumn* column : shown) cells.push_back(percent_cell(column->rate(row->worst)));
    cells.push_back(worst_step_cell(row->worst));
    cells.push_back(fmt::format("{} {}", site.op, to_string(site.point)));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::string measured_steps_text(const Report& report) {
  if (report.unmeasured_steps == 0) return "all steps";
  return report.counts_between()
             ? fmt::format("all steps ({} of them counted only what roundings did)",
                           report.unmeasured_steps)
             : "the measured steps";
}

Blocks write_layers(const Report& report) {
  Blocks out;
  out.push_back(paragraph(fmt::format(
      "Each row is the worst site of a layer and role, over {}. to zero (underflow), "
      "subnormal, saturated: share of the values that were not zero before rounding; to inf, NaN: "
      "share of all values; inf in: share of the steps in which a value was already infinite "
      "before rounding; worst step: the step that lost the largest share there. A dot means none. "
      "Rows with less than {} to zero and less than {} subnormal are only counted. "
      "accumulator: sums of products as they are formed; grad sums: those of the backward pass.",
      measured_steps_text(report), percent(kShownLostRate), percent(kShownSubnormalRate))));
  for (const LaneReport& lane : report.lanes) {
    if (lane.is_twin()) continue;
    if (lane.is_captured()) {
      out.push_back(paragraph(lane.info.name + ": not measured."));
      continue;
    }
    if (lane.nonfinite_loss_at == 0) {
      out.push_back(paragraph(lane.info.name + ": its loss is not finite from step 0 on; see the "
                                               "findings."));
      continue;
    }
    std::vector<const LayerHealth*> rows;
    for (const LayerHealth& row : lane.health) {
      if (has_something_to_say(row)) rows.push_back(&row);
    }
    const size_t clean = lane.health.size() - rows.size();
    const auto receives = [&](const LayerHealth* row) {
      return only_receives_nan(report, lane, *row);
    };
    auto receivers = static_cast<size_t>(std::ranges::count_if(rows, receives));
    if (receivers <= kShownReceivers) receivers = 0;
    if (receivers > 0) std::erase_if(rows, receives);
    const std::string name =
        lane.nonfinite_loss_at < 0
            ? lane.info.name
            : fmt::format("{}, before step {} (its loss is not finite from there on)",
                          lane.info.name, lane.nonfinite_loss_at);
    if (rows.empty() && receivers == 0) {
      out.push_back(paragraph(fmt::format("{}: nothing lost in any of {}.", name,
                                          counted(clean, "(layer, role) pair"))));
      continue;
    }
    const std::string folded =
        receivers == 0 ? "" : fmt::format("{} only received NaN, ", receivers);
    out.push_back(
        paragraph(fmt::format("{}: {} lost values or precision, {}{} did not.", name,
                              counted(rows.size(), "(layer, role) pair"), folded, clean)));
    if (rows.empty()) continue;
    TableBlock table = layer_table(report, rows);
    table.name = lane.info.name;
    out.push_back(std::move(table));
  }
  return out;
}

}  // namespace

Section layers_section() {
  return {.name = "layers", .title = "What rounding did, layer by layer", .write = write_layers};
}

}  // namespace lockstep

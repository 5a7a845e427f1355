// Where and when each lane lost something: layers x steps, by measure and role, the worst first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

constexpr std::string_view kAllRoles = "all roles";
constexpr size_t kMostHeatRows = 200;  // of the table; the chart has all cells

// What the map lacks, as the end of a sentence.
std::string unmeasured_text(const Report& report) {
  if (report.unmeasured_steps == 0) return "";
  if (report.counts_between()) {
    return fmt::format("; in {} of the steps only roundings were counted", report.unmeasured_steps);
  }
  return fmt::format(", and so are the {} steps that were not measured", report.unmeasured_steps);
}

using Cells = std::map<std::pair<uint32_t, uint32_t>, StepCell>;  // by layer and column

struct View {
  const LaneReport* lane = nullptr;
  size_t measure = 0;
  std::string role;
  Cells cells;
};

// By measure: all roles together, if there are several, then each.
std::vector<View> views_of(const LaneReport& lane) {
  std::vector<View> out;
  for (size_t m = 0; m < step_measures().size(); ++m) {
    std::vector<View> roles;
    View all{&lane, m, std::string(kAllRoles), {}};
    for (const StepGrid& grid : lane.views.map.grids) {
      if (grid.measure != m) continue;
      View& role = roles.emplace_back(View{&lane, m, std::string(to_string(grid.role)), {}});
      for (const StepCell& cell : grid.cells) {
        role.cells[{cell.layer, cell.column}] = cell;
        StepCell& worst = all.cells[{cell.layer, cell.column}];
        if (cell.share > worst.share) worst = cell;
      }
    }
    if (roles.empty()) continue;
    if (roles.size() > 1) out.push_back(std::move(all));
    std::ranges::move(roles, std::back_inserter(out));
  }
  return out;
}

// How grave a cell of a measure is: the table has the measures in this order.
double gravity_of(size_t measure) {
  constexpr double kTimesGraver = 1000;
  return std::pow(kTimesGraver, -static_cast<double>(measure));
}

double weight_of(const View& view) {
  double sum = 0;
  for (const auto& [place, cell] : view.cells) sum += cell.share;
  return sum * gravity_of(view.measure);
}

// Layers that lost most, and most gravely, first; layers that lost nothing are left out.
std::vector<uint32_t> rows_of(const std::vector<View>& views, size_t layers) {
  std::vector<double> weight(layers);
  for (const View& view : views) {
    for (const auto& [place, cell] : view.cells) {
      weight[place.first] += cell.share * gravity_of(view.measure);
    }
  }
  std::vector<uint32_t> rows(layers);
  std::iota(rows.begin(), rows.end(), 0);
  std::erase_if(rows, [&](uint32_t row) { return weight[row] == 0; });
  std::ranges::stable_sort(rows, std::greater{}, [&](uint32_t row) { return weight[row]; });
  return rows;
}

std::string layer_name(const std::string& layer) {
  return layer.empty() ? "-" : layer;
}

TableBlock heat_table(const Report& report, const std::vector<View>& views) {
  struct Row {
    const View* view;
    StepCell cell;
  };
  std::vector<Row> rows;  // a layer's worst cell in each view of a single role
  for (const View& view : views) {
    if (view.role == kAllRoles) continue;
    std::map<uint32_t, StepCell> worst;
    for (const auto& [place, cell] : view.cells) {
      if (cell.share > worst[place.first].share) worst[place.first] = cell;
    }
    for (const auto& [layer, cell] : worst) rows.push_back({&view, cell});
  }
  TableBlock table;
  table.columns = {{"lane", Align::kLeft},
                   {"measure", Align::kLeft},
                   {"layer", Align::kLeft},
                   {"role", Align::kLeft},
                   {"worst"},
                   {"steps"},
                   {"where", Align::kLeft}};
  for (size_t i = 0; i < std::min(rows.size(), kMostHeatRows); ++i) {
    const auto& [view, cell] = rows[i];
    const StepMap& map = view->lane->views.map;
    const auto& [first, last] = map.columns[cell.column];
    const Site& site = report.site(cell.site);
    table.rows.push_back(
        {view->lane->info.name, std::string(step_measures()[view->measure].name),
         layer_name(map.layers[cell.layer]), view->role, percent_cell(cell.share),
         first == last ? fmt::format("{}", first) : fmt::format("{}..{}", first, last),
         fmt::format("{} {}", site.op, to_string(site.point))});
  }
  if (rows.size() > kMostHeatRows) {
    table.notes.push_back(fmt::format("... and {} more", rows.size() - kMostHeatRows));
  }
  return table;
}

Blocks write_heat_map(const Report& report) {
  std::vector<View> views;
  size_t columns = 0;
  const StepMap* widest = nullptr;
  for (const LaneReport& lane : report.lanes) {
    for (View& view : views_of(lane)) views.push_back(std::move(view));
    if (lane.views.map.columns.size() > columns) {
      columns = lane.views.map.columns.size();
      widest = &lane.views.map;
    }
  }
  if (views.empty()) return {};
  std::ranges::stable_sort(views, std::greater{}, weight_of);
  HeatMap map;
  map.x_title = "step";
  map.y_title = "layer";
  map.selectors = {"lane", "measure", "role"};
  const std::vector<uint32_t> rows = rows_of(views, widest->layers.size());
  std::vector<uint32_t> place(widest->layers.size());
  for (uint32_t i = 0; i < rows.size(); ++i) {
    place[rows[i]] = i;
    map.rows.push_back(layer_name(widest->layers[rows[i]]));
  }
  map.order_names = {"worst first", "order of the network"};
  map.other_order.resize(rows.size());
  std::iota(map.other_order.begin(), map.other_order.end(), 0);
  std::ranges::sort(map.other_order, {}, [&](uint32_t row) { return rows[row]; });
  for (const auto& [first, last] : widest->columns) {
    map.columns.push_back(first == last ? fmt::format("{}", first)
                                        : fmt::format("{}..{}", first, last));
  }
  for (const View& view : views) {
    const StepMeasure& measure = step_measures()[view.measure];
    HeatView& out = map.views.emplace_back();
    out.choice = {view.lane->info.name, std::string(measure.name), view.role};
    out.unit = measure.help;
    out.lane = view.lane->info.name;
    for (const auto& [where, cell] : view.cells) {
      out.cells.push_back({.row = place[where.first],
                           .column = cell.column,
                           .value = cell.share,
                           .site = cell.site});
    }
  }
  map.floor = kLeastShownShare;
  const std::string about = fmt::format(
      "Each cell is the worst site and step of a layer{}; shares below {} are left out{}.",
      report.steps > static_cast<int64_t>(columns) ? " in some neighbouring steps" : "",
      percent(kLeastShownShare), unmeasured_text(report));
  return {paragraph(about),
          chart("What was lost, by layer and step", std::move(map), heat_table(report, views))};
}

}  // namespace

Section heat_map_section() {
  return {.name = "heat-map",
          .title = "Where and when values were lost",
          .in_summary = false,
          .write = write_heat_map,
          .only_html = true};
}

}  // namespace lockstep

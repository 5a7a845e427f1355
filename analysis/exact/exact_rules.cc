#include "analysis/exact/exact_rules.h"

#include <cmath>

namespace lockstep {
namespace {

// |sum x y| has an error relative to sqrt(sum x^2) sqrt(sum y^2), x unscaled.
std::vector<double> product_of_norms(const LaneView& view) {
  const Quantity& sum_sq = quantity_of(&TensorStats::sum_sq);
  std::vector<double> lane = view.numbers(sum_sq).reals;
  const std::vector<double> ref = view.run().numbers_at(kReferenceIndex, sum_sq, view.step()).reals;
  const std::vector<double> scale = view.numbers(quantity_of(&SiteRecord::scale)).reals;
  for (size_t i = 0; i < lane.size(); ++i) lane[i] = std::sqrt(lane[i] * ref[i]) / scale[i];
  return lane;
}

Scope scope_of(const Quantity& quantity) {
  if (quantity.rows() == Rows::kEvaluation) return Scope::kEvaluation;
  if (quantity.source == Source(Gathered::kHistograms)) return Scope::kRecord;
  if (quantity.rows() != Rows::kStep) return Scope::kLane;
  if (quantity.axis == Axis::kSite) return Scope::kSite;
  return quantity.axis == Axis::kParameter ? Scope::kParameter : Scope::kStep;
}

ExactRule rule_of(const Quantity& quantity) {
  ExactRule rule{.name = quantity.name,
                 .comparison = quantity.comparison,
                 .help = quantity.help,
                 .scope = scope_of(quantity),
                 .read = [&quantity](const LaneView& view) { return view.numbers(quantity); },
                 .at = quantity.at};
  const Statistic* statistic = quantity.statistic;
  if (statistic != nullptr && statistic->signed_terms) rule.magnitude = product_of_norms;
  return rule;
}

std::vector<ExactRule> make_rules() {
  std::vector<ExactRule> rules;
  for (const Quantity& quantity : quantities()) {
    if (quantity.comparison != Compared::kNone) rules.push_back(rule_of(quantity));
  }
  rules.push_back({.name = "died_at",
                   .comparison = Compared::kExact,
                   .help = "step after which the lane stopped",
                   .scope = Scope::kLane,
                   .read = [](const LaneView& view) {
                     const auto lane = static_cast<size_t>(view.lane());
                     const int64_t died_at = view.run().lanes()[lane].died_at;
                     return Numbers{{}, {static_cast<double>(died_at)}};
                   }});
  return rules;
}

size_t place_of(const Quantity& quantity) {
  return static_cast<size_t>(&quantity - quantities().data());
}

}  // namespace

LaneView::LaneView(const RunFile& run, int lane)
    : run_(run), lane_(lane), series_(quantities().size()), sites_(quantities().size()) {
  for (const Quantity& quantity : quantities()) {
    const Scope scope = scope_of(quantity);
    if (quantity.comparison == Compared::kNone) continue;
    if (scope != Scope::kStep && scope != Scope::kParameter) continue;
    series_[place_of(quantity)] = run_.numbers(lane_, quantity);
  }
}

const std::string& LaneView::lane_name() const {
  return run_.lanes()[static_cast<size_t>(lane_)].name;
}

void LaneView::load_step(int64_t step) {
  step_ = step;
  for (const Quantity& quantity : quantities()) {
    if (scope_of(quantity) == Scope::kSite) {
      sites_[place_of(quantity)] = run_.numbers_at(lane_, quantity, step);
    }
  }
  find_numbers();
}

Numbers LaneView::numbers(const Quantity& quantity) const {
  const Scope scope = scope_of(quantity);
  if (scope == Scope::kSite) return sites_[place_of(quantity)];
  if (scope == Scope::kRecord) return run_.numbers_at(lane_, quantity, step_);
  if (scope == Scope::kEvaluation || scope == Scope::kLane) return run_.numbers(lane_, quantity);
  const Numbers& all = series_[place_of(quantity)];
  const auto width = static_cast<std::ptrdiff_t>(all.size()) / run_.steps();
  const auto row = [&](const auto& values) {
    using Row = std::decay_t<decltype(values)>;
    if (values.empty()) return Row{};
    return Row{values.begin() + step_ * width, values.begin() + (step_ + 1) * width};
  };
  return {row(all.integers), row(all.reals)};
}

void LaneView::find_numbers() {
  const auto of_sites = [&](const Source& source) -> const Numbers& {
    return sites_[place_of(quantity_of(source))];
  };
  const auto& elements = of_sites(&TensorStats::count).integers;
  const auto& compared = of_sites(&ErrorStats::compared).integers;
  const auto& zero = of_sites(&TensorStats::source_zero).integers;
  const auto& updates = of_sites(&UpdateStats::count).integers;
  const auto& update_sq = of_sites(&UpdateStats::update_sq).reals;
  const auto& scales = of_sites(&SiteRecord::scale).reals;
  const auto fill = [&](At at, auto has) {
    std::vector<bool>& here = has_[static_cast<size_t>(at)];
    here.resize(elements.size());
    for (size_t site = 0; site < here.size(); ++site) here[site] = has(site);
  };
  fill(At::kEverySite, [](size_t) { return true; });
  const auto is_measured = [&](size_t i) { return elements[i] > 0 && !std::isnan(scales[i]); };
  fill(At::kMeasured, is_measured);
  fill(At::kCompared, [&](size_t i) { return compared[i] > 0; });
  fill(At::kNonzero, [&](size_t i) { return is_measured(i) && elements[i] != zero[i]; });
  fill(At::kUpdated, [&](size_t i) { return updates[i] > 0 || !std::isnan(update_sq[i]); });
}

std::span<const ExactRule> exact_rules() {
  static const std::vector<ExactRule> rules = make_rules();
  return rules;
}

bool compares_hashes(std::string_view rule) {
  return rule == quantity_of(&TensorStats::bits_hash).name;
}

}  // namespace lockstep

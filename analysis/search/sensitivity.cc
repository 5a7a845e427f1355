// See sensitivity.h.
#include "analysis/search/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "analysis/findings/drift.h"
#include "analysis/run/loss_noise.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

constexpr int64_t kStepsRead = 8;  // of a run, for relative errors

double square(double x) {
  return x * x;
}

// Whether the site is a factor of a weight's gradient.
bool is_gradient_factor(const Site& site, const Graph& graph) {
  if (site.point != Point::kOperand || !is_in_graph(site) || is_on_other_path(site)) {
    return false;
  }
  const Node& node = graph.node(site.node);
  return node.is_backward() && find_op(node.op).sums.products != nullptr &&
         std::ranges::any_of(node.gradient_of, [&](const std::string& value) {
           return graph.parameter_of(value) != nullptr;
         });
}

// Relative rounding error, squared, of what an operand reads: of its own cast, or, where it has
// none, of the roundings that made the value.
double relative_error_sq(const std::vector<Site>& sites, size_t id,
                         const std::vector<double>& error, const std::vector<double>& whole) {
  constexpr int kMostViews = 4;  // between an operand and the op that rounded it
  std::vector<size_t> at = {id};
  for (int depth = 0; depth <= kMostViews && !at.empty(); ++depth) {
    double largest = 0;
    std::vector<size_t> before;
    for (const size_t site : at) {
      if (whole[site] > 0) largest = std::max(largest, error[site] / whole[site]);
      for (const int32_t feed : sites[site].feeds) before.push_back(static_cast<size_t>(feed));
    }
    if (largest > 0) return largest;
    at = std::move(before);
  }
  return 0;
}

double lost_share(const RunFile& run, int lane, size_t site) {
  double lost = 0, whole = 0;
  for (const int64_t step : some_steps(run.steps())) {
    const UpdateRecord update = run.updates(lane, step)[site];
    lost += update.stats.stagnant_sq;
    whole += update.stats.update_sq;
  }
  return whole > 0 ? lost / whole : 0;
}

std::vector<double> ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> out(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double mean = static_cast<double>(begin + end - 1) / 2;
    for (; begin < end; ++begin) out[order[begin]] = mean;
  }
  return out;
}

}  // namespace

// Steps spread over the run.
std::vector<int64_t> some_steps(int64_t steps) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < std::min(steps, kStepsRead); ++i) {
    out.push_back(i * steps / std::min(steps, kStepsRead));
  }
  return out;
}

// Sums of a moment over some steps, by site.
std::vector<double> moment_sums(const RunFile& run, int lane, std::string_view name) {
  std::vector<double> sums(run.sites().sites.size());
  for (const int64_t step : some_steps(run.steps())) {
    const std::vector<double> here = run.moment(lane, name, step);
    for (size_t i = 0; i < sums.size(); ++i) {
      if (std::isfinite(here[i])) sums[i] += here[i];
    }
  }
  return sums;
}

double score_of(double loss_error, double error_to_noise, double batch_noise) {
  const double score =
      (batch_noise > 0 ? square(loss_error / batch_noise) : 0) + square(error_to_noise);
  return std::isfinite(score) ? std::min(score, kSpoiltScore) : kSpoiltScore;
}

const GradientNoise* noise_at(const Site& site, const Graph& step,
                              const std::vector<GradientNoise>& noise) {
  if (!is_in_graph(site) || is_on_other_path(site)) return nullptr;
  const std::vector<std::string>& values = step.node(site.node).gradient_of;
  for (size_t i = 0; i < values.size(); ++i) {
    if (site.point == Point::kOutput && i != static_cast<size_t>(site.index)) continue;
    const Parameter* weight = step.parameter_of(values[i]);
    if (weight == nullptr) continue;
    const auto row = std::ranges::find(noise, weight->name, &GradientNoise::weight);
    if (row != noise.end()) return &*row;
  }
  return nullptr;
}

double rank_correlation(std::span<const double> a, std::span<const double> b) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (a.size() < 3) return kNone;
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mean = static_cast<double>(a.size() - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += square(x[i] - mean);
    yy += square(y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : kNone;
}

void add_scores(const RunFile& run, int lane, const std::string& format, const Network& network,
                const std::vector<std::string>& layers, SensitivityTable& table) {
  const std::vector<Site>& sites = run.sites().sites;
  const auto samples = run.loss_effects(lane);
  const std::vector<double> rounding = effect_sizes(samples, &LossEffect::rounding, sites.size());
  const std::vector<double> range = effect_sizes(samples, &LossEffect::range, sites.size());
  const std::vector<double> error = moment_sums(run, lane, "round_err_sq");
  const std::vector<double> whole = moment_sums(run, lane, "sum_sq");
  const std::vector<double> loss = run.loss(kReferenceIndex);
  table.batch_noise = loss.size() < 2 ? 0 : step_scatter(loss);
  table.noise = gradient_noise(run, network.step);

  std::map<std::pair<std::string, Role>, RoleSensitivity> roles;
  for (const Site& site : sites) {
    if (std::ranges::find(layers, site.layer) == layers.end()) continue;
    const auto id = static_cast<size_t>(site.id);
    RoleSensitivity& row = roles[{site.layer, site.role}];
    row.effect = std::hypot(row.effect, rounding[id]);
    row.range_effect = std::hypot(row.range_effect, range[id]);
    if (is_gradient_factor(site, network.step)) {
      const double squared = relative_error_sq(sites, id, error, whole);
      row.gradient_error = std::hypot(row.gradient_error, std::sqrt(squared));
      const GradientNoise* noise = noise_at(site, network.step, table.noise);
      const double share = noise == nullptr ? 1 : noise->share;
      row.error_to_noise = std::hypot(row.error_to_noise, std::sqrt(squared / share));
    }
    if (site.node.starts_with("optimizer:") && site.role == Role::kWeight) {
      row.updates_lost = std::max(row.updates_lost, lost_share(run, lane, id));
    }
  }
  for (const ProductFact& fact : product_facts(network.step)) {
    if (std::ranges::find(layers, fact.layer) == layers.end()) continue;
    int64_t& terms = roles[{fact.layer, Role::kAccumulator}].terms;
    terms = std::max(terms, fact.shape.k);
  }
  std::map<std::string, double> scores;
  for (auto& [key, row] : roles) {
    row.layer = key.first;
    row.role = key.second;
    row.format = format;
    row.score =
        score_of(std::hypot(row.effect, row.range_effect), row.error_to_noise, table.batch_noise);
    scores[row.layer] += row.score;
    const bool says_nothing = row.effect == 0 && row.range_effect == 0 && row.gradient_error == 0 &&
                              row.updates_lost == 0 && row.terms == 0;
    if (!says_nothing) table.roles.push_back(row);
  }
  for (const std::string& layer : layers) {
    table.layers.push_back({.layer = layer, .format = format, .score = scores[layer]});
  }
}

}  // namespace lockstep

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

// Steps spread over the run.
std::vector<int64_t> some_steps(int64_t steps) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < std::min(steps, kStepsRead); ++i) {
    out.push_back(i * steps / std::min(steps, kStepsRead));
  }
  return out;
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

SomeSums some_sums(const RunFile& run, int lane) {
  const std::vector<double> none(run.sites().sites.size());
  SomeSums sums{none, none, none, none, none, none};
  const auto add = [](double& sum, double x) {
    if (std::isfinite(x)) sum += x;
  };
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  LaneStep step;
  for (const int64_t at : some_steps(run.steps())) {
    run.read_step(lane, at, /*histograms=*/false, step);
    for (size_t i = 0; i < none.size(); ++i) {
      const SiteRecord& site = step.sites[i];
      add(sums.sum_sq[i], site.stats.sum_sq);
      add(sums.round_err_sq[i], site.stats.round_err_sq);
      add(sums.err_sq[i], site.error.err_sq);
      add(sums.ref_sq[i], site.error.ref_sq);
      const UpdateStats& update = site.update.stats;
      sums.stagnant_sq[i] += update.stagnant_sq;
      sums.update_sq[i] += site.update.measured ? update.update_sq : kNone;
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
  const LossEffectTally effects = loss_effects(run, lane);
  const std::vector<double> rounding = effects.sizes(&LossEffect::rounding);
  const std::vector<double> range = effects.sizes(&LossEffect::range);
  const SomeSums sums = some_sums(run, lane);
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
      const double squared = relative_error_sq(sites, id, sums.round_err_sq, sums.sum_sq);
      row.gradient_error = std::hypot(row.gradient_error, std::sqrt(squared));
      const GradientNoise* noise = noise_at(site, network.step, table.noise);
      const double share = noise == nullptr ? 1 : noise->share;
      row.error_to_noise = std::hypot(row.error_to_noise, std::sqrt(squared / share));
    }
    if (site.node.starts_with("optimizer:") && site.role == Role::kWeight) {
      const double whole = sums.update_sq[id];
      row.updates_lost = std::max(row.updates_lost, whole > 0 ? sums.stagnant_sq[id] / whole : 0);
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

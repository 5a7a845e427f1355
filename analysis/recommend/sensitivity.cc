// See sensitivity.h.
#include "analysis/recommend/sensitivity.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "analysis/findings/drift.h"
#include "analysis/run/loss_noise.h"
#include "src/graph/op.h"
#include "src/policy/parse/toml_text.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

constexpr int kReference = 0;
constexpr int64_t kStepsRead = 8;      // of a run, for relative errors
constexpr int64_t kIsolatedSteps = 5;  // of a synced replay
constexpr int64_t kAccumulatedSteps = 20;
constexpr size_t kHighest = 3, kMiddle = 3, kLowest = 2;  // measured of each format

constexpr double kSpoilt = 1e12;  // above any score of a layer that computes

double square(double x) {
  return x * x;
}

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

// Whether the site is a factor of a weight's gradient.
bool is_gradient_factor(const Site& site, const Graph& graph) {
  if (site.point != Point::kOperand || site.node.find(':') != std::string::npos) return false;
  const Node& node = graph.node(site.node);
  return node.is_backward() && find_op(node.op).products != nullptr &&
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

// The policy in which this layer alone is low.
std::string alone(const LayerSensitivity& one, const Network& network, int scale_exponent) {
  toml::table policy{{"extends", "fp32"}};
  toml::array rules;
  if (const NarrowFormat* narrow = find_narrow_format(one.format)) {
    policy.insert("scaling", scaling_of(*narrow));
    for (const std::string& other : network.linear) {
      if (other == one.layer) continue;
      rules.push_back(toml::table{{"layer", other}, {"op", "linear"}, {"compute", "fp32"}});
    }
  } else {
    rules.push_back(toml::table{{"layer", one.layer}, {"compute", one.format}});
    if (scale_exponent != 0) {
      policy.insert("loss_scale", toml::table{{"kind", "static"},
                                              {"init_scale", std::ldexp(1.0, scale_exponent)}});
    }
  }
  if (!rules.empty()) policy.insert("rule", rules);
  return toml_text(policy);
}

MeasuredSensitivity isolated(const RunFile& run, int lane) {
  MeasuredSensitivity out;
  const std::vector<double> reference = run.loss(kReference), loss = run.loss(lane);
  for (size_t t = 0; t < loss.size(); ++t) {
    out.loss_error += square(loss[t] - reference[t]) / static_cast<double>(loss.size());
  }
  out.loss_error = std::sqrt(out.loss_error);
  const std::vector<double> error = moment_sums(run, lane, "err_sq");
  const std::vector<double> whole = moment_sums(run, lane, "ref_sq");
  double sum = 0;
  for (const Site& site : run.sites().sites) {
    const auto id = static_cast<size_t>(site.id);
    if (site.role != Role::kGradWeight || site.point != Point::kOutput || !(whole[id] > 0))
      continue;
    sum += error[id] / whole[id];
  }
  out.gradient_error = std::sqrt(sum);
  return out;
}

double accumulated(const RunFile& run, int lane) {
  return tail_mean(run.loss(lane)) - tail_mean(run.loss(kReference));
}

// Runs these rows of the table, a few to a replay.
void measure(TrialRuns& runs, const Network& network,
             const std::map<std::string, int>& scale_exponents, std::span<const size_t> rows,
             const std::function<bool()>& may_go_on, SensitivityTable& table) {
  for (size_t at = 0; at < rows.size() && may_go_on(); at += kLanesPerReplay) {
    const auto part = rows.subspan(at, std::min(kLanesPerReplay, rows.size() - at));
    std::vector<Candidate> lanes;
    for (const size_t row : part) {
      const LayerSensitivity& one = table.layers[row];
      const auto scale = scale_exponents.find(one.format);
      lanes.push_back(
          {.lane = fmt::format("alone-{}.toml", row),
           .format = one.format,
           .toml = alone(one, network, scale == scale_exponents.end() ? 0 : scale->second)});
    }
    const RunFile synced(runs.measure(lanes, LaneMode::kSynced, kIsolatedSteps));
    table.floor = isolated(synced, synced.lane_index(twin_name(1)));
    for (size_t i = 0; i < part.size(); ++i) {
      table.layers[part[i]].measured = isolated(synced, synced.lane_index(lanes[i].lane));
    }
    const RunFile free(runs.measure(lanes, LaneMode::kFree, kAccumulatedSteps));
    table.floor.accumulated = accumulated(free, free.lane_index(twin_name(1)));
    for (size_t i = 0; i < part.size(); ++i) {
      table.layers[part[i]].measured->accumulated =
          accumulated(free, free.lane_index(lanes[i].lane));
    }
  }
}

// A layer that breaks alone has kSpoilt.
double measured_score(const SensitivityTable& table, const MeasuredSensitivity& measured) {
  const double s = table.batch_noise;
  const double score =
      (s > 0 ? square(measured.loss_error / s) : 0) + square(measured.gradient_error);
  return std::isfinite(score) ? std::min(score, kSpoilt) : kSpoilt;
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
  const std::vector<double> loss = run.loss(kReference);
  table.batch_noise = loss.size() < 2 ? 0 : step_scatter(loss);

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
    const double s = table.batch_noise;
    const double effect = square(row.effect) + square(row.range_effect);
    const double score = (s > 0 ? effect / square(s) : 0) + square(row.gradient_error);
    scores[row.layer] += std::isfinite(score) ? std::min(score, kSpoilt) : kSpoilt;
    const bool says_nothing = row.effect == 0 && row.range_effect == 0 && row.gradient_error == 0 &&
                              row.updates_lost == 0 && row.terms == 0;
    if (!says_nothing) table.roles.push_back(row);
  }
  for (const std::string& layer : layers) {
    table.layers.push_back({.layer = layer, .format = format, .score = scores[layer]});
  }
}

void measure_some(TrialRuns& runs, const Network& network,
                  const std::map<std::string, int>& scale_exponents,
                  const std::function<bool()>& may_go_on, SensitivityTable& table) {
  std::map<std::string, std::vector<size_t>> by_format;  // rows, the highest score first
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const LayerSensitivity& row = table.layers[i];
    const bool is_nameable = row.layer.find_first_of("*?") == std::string::npos;  // by a rule
    if (is_nameable) by_format[row.format].push_back(i);
  }
  std::set<size_t> some, top_third;
  for (auto& [format, rows] : by_format) {
    std::ranges::stable_sort(rows, std::greater{}, [&](size_t i) { return table.layers[i].score; });
    const size_t n = rows.size();
    for (size_t i = 0; i < n; ++i) {
      const bool is_middle = i % std::max<size_t>(1, n / (kMiddle + 1)) == n / (kMiddle + 1) / 2;
      if (i < kHighest || i + kLowest >= n || is_middle) some.insert(rows[i]);
      if (3 * i < n) top_third.insert(rows[i]);
    }
  }
  table.is_measured = true;
  const std::vector<size_t> first(some.begin(), some.end());
  measure(runs, network, scale_exponents, first, may_go_on, table);
  std::vector<double> scored, measured;
  for (const size_t row : first) {
    if (!table.layers[row].measured) continue;  // the budget ended
    scored.push_back(table.layers[row].score);
    measured.push_back(measured_score(table, *table.layers[row].measured));
  }
  table.rank_correlation = rank_correlation(scored, measured);
  table.ranked = scored.size();
  if (!(table.rank_correlation >= kLeastRankCorrelation)) {
    std::vector<size_t> rest;
    std::ranges::set_difference(top_third, some, std::back_inserter(rest));
    measure(runs, network, scale_exponents, rest, may_go_on, table);
    table.measured_top_third = true;
  }
  for (LayerSensitivity& layer : table.layers) {
    if (layer.measured) layer.score = measured_score(table, *layer.measured);
  }
}

}  // namespace lockstep

// See measured_sensitivity.h.
#include "analysis/search/measured_sensitivity.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "analysis/ranges/range_samples.h"
#include "analysis/run/loss_noise.h"
#include "src/graph/op.h"
#include "src/policy/parse/toml_text.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

constexpr int64_t kIsolatedSteps = 5;  // of a synced replay
constexpr int64_t kAccumulatedSteps = 20;
constexpr size_t kHighest = 3, kMiddle = 3, kLowest = 2;  // layers measured of each format
constexpr size_t kLayersByRole = 2;                       // of each format
constexpr std::string_view kNarrowOp = "linear";

bool is_nameable(const std::string& layer) {  // by a rule
  return layer.find_first_of("*?") == std::string::npos;
}

// Whether narrow formats apply to the operand: a factor of a linear op's product, or its
// gradients'.
bool is_narrow_factor(const Site& site, const Graph& step) {
  if (site.point != Point::kOperand || !is_in_graph(site) || is_on_other_path(site)) {
    return false;
  }
  const Node& node = step.node(site.node);
  const Node& forward = node.is_backward() ? step.node(node.forward_node) : node;
  const OpDef& op = find_op(node.op);
  return forward.op == kNarrowOp && op.sums.of_products &&
         std::ranges::find(op.sums.operands, site.index) != op.sums.operands.end();
}

// What runs alone, and where its measurement goes.
struct Subject {
  std::string layer, format;
  std::optional<Role> role;
  std::optional<MeasuredSensitivity>* into;
};

MeasuredSensitivity isolated(const RunFile& run, int lane, const Network& network,
                             const SensitivityTable& table) {
  const std::vector<double> reference = run.loss(kReferenceIndex), loss = run.loss(lane);
  double loss_sq = 0, relative = 0, to_noise = 0;
  for (size_t t = 0; t < loss.size(); ++t) {
    loss_sq += (loss[t] - reference[t]) * (loss[t] - reference[t]);
  }
  const SomeSums sums = some_sums(run, lane);
  const std::vector<double>&error = sums.err_sq, &whole = sums.ref_sq;
  for (const Site& site : run.sites().sites) {
    const auto id = static_cast<size_t>(site.id);
    if (site.role != Role::kGradWeight || site.point != Point::kOutput || !(whole[id] > 0))
      continue;
    const GradientNoise* noise = noise_at(site, network.step, table.noise);
    relative += error[id] / whole[id];
    to_noise += error[id] / whole[id] / (noise == nullptr ? 1 : noise->share);
  }
  return {.loss_error = std::sqrt(loss_sq / static_cast<double>(loss.size())),
          .gradient_error = std::sqrt(relative),
          .error_to_noise = std::sqrt(to_noise)};
}

double accumulated(const RunFile& run, int lane) {
  return tail_mean(run.loss(lane)) - tail_mean(run.loss(kReferenceIndex));
}

double measured_score(const SensitivityTable& table, const MeasuredSensitivity& measured) {
  return score_of(measured.loss_error, measured.error_to_noise, table.batch_noise);
}

class SensitivityRuns {
 public:
  SensitivityRuns(TrialRuns& runs, const Network& network, const std::map<std::string, int>& scales,
                  const std::function<bool()>& may_go_on, SensitivityTable& table)
      : runs_(runs), network_(network), scales_(scales), may_go_on_(may_go_on), table_(table) {}

  void measure_layers(std::span<const size_t> rows) {
    std::vector<Subject> subjects;
    for (const size_t row : rows) {
      LayerSensitivity& one = table_.layers[row];
      subjects.push_back({one.layer, one.format, std::nullopt, &one.measured});
    }
    measure(subjects);
  }

  void measure_roles(std::span<const size_t> rows) {
    std::vector<Subject> subjects;
    for (const size_t row : rows) {
      RoleSensitivity& one = table_.roles[row];
      subjects.push_back({one.layer, one.format, one.role, &one.measured});
    }
    measure(subjects);
  }

 private:
  // A few to a replay.
  void measure(std::span<const Subject> subjects) {
    for (size_t at = 0; at < subjects.size() && may_go_on_(); at += kLanesPerReplay) {
      const auto part = subjects.subspan(at, std::min(kLanesPerReplay, subjects.size() - at));
      std::vector<Candidate> lanes;
      for (const Subject& one : part) {
        const auto scale = scales_.find(one.format);
        lanes.push_back({.lane = fmt::format("alone-{}.toml", number_++),
                         .format = one.format,
                         .toml = alone_policy(one.layer, one.format, one.role, network_,
                                              scale == scales_.end() ? 0 : scale->second)});
      }
      const RunFile synced(runs_.measure(lanes, LaneMode::kSynced, kIsolatedSteps));
      table_.floor = isolated(synced, synced.lane_index(twin_name(1)), network_, table_);
      for (size_t i = 0; i < part.size(); ++i) {
        *part[i].into = isolated(synced, synced.lane_index(lanes[i].lane), network_, table_);
      }
      const RunFile free(runs_.measure(lanes, LaneMode::kFree, kAccumulatedSteps));
      table_.floor.accumulated = accumulated(free, free.lane_index(twin_name(1)));
      for (size_t i = 0; i < part.size(); ++i) {
        (*part[i].into)->accumulated = accumulated(free, free.lane_index(lanes[i].lane));
      }
    }
  }

  TrialRuns& runs_;
  const Network& network_;
  const std::map<std::string, int>& scales_;
  const std::function<bool()>& may_go_on_;
  SensitivityTable& table_;
  int number_ = 0;
};

// The rank correlation over the rows that were measured.
template <typename Row>
RankCorrelation correlation(const SensitivityTable& table, const std::vector<Row>& all,
                            std::span<const size_t> rows) {
  std::vector<double> scored, measured;
  for (const size_t row : rows) {
    if (!all[row].measured) continue;  // the budget ended
    scored.push_back(all[row].score);
    measured.push_back(measured_score(table, *all[row].measured));
  }
  return {rank_correlation(scored, measured), scored.size()};
}

// Rows of the roles of the most sensitive measured layers, of each format; adds those without a
// score.
std::vector<size_t> role_rows(const Network& network, SensitivityTable& table) {
  std::map<std::string, std::vector<const LayerSensitivity*>> by_format;
  for (const LayerSensitivity& row : table.layers) {
    if (row.measured) by_format[row.format].push_back(&row);
  }
  std::vector<size_t> rows;
  for (auto& [format, layers] : by_format) {
    std::ranges::stable_sort(layers, std::greater{}, [&](const LayerSensitivity* row) {
      return measured_score(table, *row->measured);
    });
    if (layers.size() > kLayersByRole) layers.resize(kLayersByRole);
    for (const LayerSensitivity* one : layers) {
      for (const Role role : roles_in_format(one->layer, format, network)) {
        const auto found = std::ranges::find_if(table.roles, [&](const RoleSensitivity& row) {
          return row.layer == one->layer && row.format == format && row.role == role;
        });
        rows.push_back(static_cast<size_t>(found - table.roles.begin()));
        if (found == table.roles.end()) {
          table.roles.push_back({.layer = one->layer, .format = format, .role = role});
        }
      }
    }
  }
  return rows;
}

}  // namespace

std::vector<Role> roles_in_format(const std::string& layer, const std::string& format,
                                  const Network& network) {
  const bool is_narrow = find_narrow_format(format) != nullptr;
  std::vector<Role> roles;
  for (const Site& site : network.sites.sites) {
    if (site.layer != layer || !is_in_graph(site)) continue;
    if (is_narrow ? !is_narrow_factor(site, network.step)
                  : site.point != Point::kOperand && site.point != Point::kOutput) {
      continue;
    }
    if (!may_be_low(site.role)) continue;  // kept in FP32 by every candidate
    if (std::ranges::find(roles, site.role) == roles.end()) roles.push_back(site.role);
  }
  return roles;
}

std::string alone_policy(const std::string& layer, const std::string& format,
                         std::optional<Role> role, const Network& network, int scale_exponent) {
  toml::table policy{{"extends", "fp32"}};
  toml::array rules;
  const NarrowFormat* narrow = find_narrow_format(format);
  const bool is_narrow = narrow != nullptr;
  if (is_narrow) {
    policy.insert("scaling", scaling_of(*narrow));
    for (const std::string& other : network.linear) {
      if (other == layer) continue;
      rules.push_back(toml::table{{"layer", other}, {"op", kNarrowOp}, {"compute", "fp32"}});
    }
  } else {
    // Without it an op that follows its operands, as gelu does, would compute in the layer's
    // format.
    rules.push_back(toml::table{{"layer", "*"}, {"compute", "fp32"}});
    toml::table rule{{"layer", layer}};
    if (role) {
      rule.insert("role", to_string(*role));
      rule.insert("format", format);
    } else {
      rule.insert("compute", format);
    }
    rules.push_back(std::move(rule));
    if (scale_exponent != 0) {
      policy.insert("loss_scale", toml::table{{"kind", "static"},
                                              {"init_scale", std::ldexp(1.0, scale_exponent)}});
    }
  }
  // The gradient of a value in 16 bits would be in 16 bits, too; scaling takes every factor.
  for (const Role other : roles_in_format(layer, format, network)) {
    if (!role || other == *role) continue;
    toml::table rule{{"layer", layer}, {"role", to_string(other)}, {"format", "fp32"}};
    if (is_narrow) rule.insert("point", to_string(Point::kOperand));
    rules.push_back(std::move(rule));
  }
  if (!rules.empty()) policy.insert("rule", rules);
  return toml_text(policy);
}

void measure_some(TrialRuns& runs, const Network& network,
                  const std::map<std::string, int>& scale_exponents,
                  const std::function<bool()>& may_go_on, SensitivityTable& table) {
  std::map<std::string, std::vector<size_t>> by_format;  // rows, the highest score first
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const LayerSensitivity& row = table.layers[i];
    if (is_nameable(row.layer)) by_format[row.format].push_back(i);
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
  SensitivityRuns sensitivity(runs, network, scale_exponents, may_go_on, table);
  const std::vector<size_t> first(some.begin(), some.end());
  sensitivity.measure_layers(first);
  table.of_layers = correlation(table, table.layers, first);
  if (!(table.of_layers.value >= kLeastRankCorrelation)) {
    std::vector<size_t> rest;
    std::ranges::set_difference(top_third, some, std::back_inserter(rest));
    sensitivity.measure_layers(rest);
    table.measured_top_third = true;
  }
  const std::vector<size_t> roles = role_rows(network, table);
  sensitivity.measure_roles(roles);
  table.of_roles = correlation(table, table.roles, roles);
  for (LayerSensitivity& layer : table.layers) {
    if (layer.measured) layer.score = measured_score(table, *layer.measured);
  }
}

}  // namespace lockstep

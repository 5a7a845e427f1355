// One row per compared dataset. The rows for counts and moments come from the table of statistics,
// so that a new statistic is checked without a line here.
#include "analysis/check/check_rules.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

constexpr int kReferenceLane = 0;

std::vector<double> dot_magnitude(const LaneView& view) {
  // |sum x y| has an error relative to sqrt(sum x^2) sqrt(sum y^2), x unscaled.
  std::vector<double> lane = view.run.moment(view.lane, "sum_sq", view.step);
  const std::vector<double> ref = view.run.moment(kReferenceLane, "sum_sq", view.step);
  const std::vector<double> scale = view.run.scale(view.lane, view.step);
  for (size_t i = 0; i < lane.size(); ++i) lane[i] = std::sqrt(lane[i] * ref[i]) / scale[i];
  return lane;
}

uint64_t site_count(const LaneView& v, size_t i) {
  return v.count[i];
}
uint64_t site_compared(const LaneView& v, size_t i) {
  return v.compared[i];
}
// The smallest nonzero magnitude exists where some value is not zero.
uint64_t site_nonzero(const LaneView& v, size_t i) {
  return v.nonzero[i];
}
uint64_t site_updated(const LaneView& v, size_t i) {
  return v.updates[i].measured ? 1 : 0;
}

RuleRow statistic_row(const Statistic& statistic) {
  const std::string name(statistic.name);
  RuleRow row;
  row.scope = Scope::kSite;
  if (statistic.kind == StatisticKind::kCount) {
    row.rule = {"counts/" + name, Comparison::kExact, std::string(statistic.help)};
    row.read = [name](const LaneView& v) {
      return Column{.integers = v.run.count(v.lane, name, v.step), .reals = {}};
    };
    return row;
  }
  row.rule = {"moments/" + name, Comparison::kTolerance, std::string(statistic.help)};
  row.read = [name](const LaneView& v) {
    return Column{.integers = {}, .reals = v.run.moment(v.lane, name, v.step)};
  };
  const bool of_error = name.starts_with("err_") || name == "dot_ref" || name == "ref_sq";
  row.measured = of_error ? site_compared : site_count;
  if (name == "abs_min_nonzero") row.measured = site_nonzero;
  if (name == "dot_ref") row.magnitude = dot_magnitude;
  return row;
}

template <typename Get>
RuleRow scaler_row(std::string name, std::string help, Get get) {
  RuleRow row;
  row.rule = {"loss_scale/" + std::move(name), Comparison::kExact, std::move(help)};
  row.scope = Scope::kStep;
  row.read = [get](const LaneView& v) {
    Column column;
    for (const std::vector<ScalerRecord>& scaler : v.scalers) {
      column.reals.push_back(static_cast<double>(get(scaler[static_cast<size_t>(v.step)])));
    }
    return column;
  };
  return row;
}

template <typename Get>
RuleRow update_row(std::string name, Comparison comparison, std::string help, Get get) {
  RuleRow row;
  row.rule = {"updates/" + std::move(name), comparison, std::move(help)};
  row.scope = Scope::kSite;
  row.measured = site_updated;
  row.read = [get](const LaneView& v) {
    Column column;
    for (const UpdateRecord& u : v.updates) {
      column.reals.push_back(static_cast<double>(get(u.stats)));
    }
    return column;
  };
  return row;
}

template <typename Get>
RuleRow evaluation_row(std::string name, Comparison comparison, std::string help, Get get) {
  RuleRow row;
  row.rule = {"eval/" + std::move(name), comparison, std::move(help)};
  row.scope = Scope::kEvaluation;
  row.read = [get](const LaneView& v) {
    Column column;
    for (const Evaluation& e : v.evaluations) column.reals.push_back(static_cast<double>(get(e)));
    return column;
  };
  return row;
}

RuleRow lane_row(std::string name, std::string help,
                 std::function<std::vector<uint64_t>(const LaneView&)> get) {
  RuleRow row;
  row.rule = {std::move(name), Comparison::kExact, std::move(help)};
  row.scope = Scope::kLane;
  row.read = [get = std::move(get)](const LaneView& v) {
    return Column{.integers = get(v), .reals = {}};
  };
  return row;
}

// The record of the view's step; nothing where there is none.
Column histogram_record(const LaneView& v) {
  const auto found = std::lower_bound(v.histogram_steps.begin(), v.histogram_steps.end(), v.step);
  if (found == v.histogram_steps.end() || *found != v.step) return {};
  const std::vector<uint32_t> bins = v.run.histogram(v.lane, found - v.histogram_steps.begin());
  return {.integers = {bins.begin(), bins.end()}, .reals = {}};
}

void add_histogram_rows(std::vector<RuleRow>& rows) {
  rows.push_back({.rule = {"exponent_histogram", Comparison::kExact,
                           "exponent histograms of single steps, by site and bin"},
                  .scope = Scope::kRecord,
                  .read = histogram_record,
                  .measured = nullptr,
                  .magnitude = nullptr});
  rows.push_back(lane_row(
      "exponent_histogram_step", "steps with a histogram of their own", [](const LaneView& v) {
        return std::vector<uint64_t>(v.histogram_steps.begin(), v.histogram_steps.end());
      }));
  rows.push_back(lane_row("exponent_histogram_50", "exponent histograms, summed over the run",
                          [](const LaneView& v) { return v.run.total_histogram(v.lane); }));
  rows.push_back(
      lane_row("exponent_histogram_50_steps", "steps that those sums cover", [](const LaneView& v) {
        return std::vector<uint64_t>{static_cast<uint64_t>(v.run.total_histogram_steps(v.lane))};
      }));
}

// What sampling the sums of products showed, over the run, by site.
RuleRow sums_row(const HealthColumn& column) {
  RuleRow row;
  row.rule = {std::string("sums/") + column.name,
              column.count != nullptr ? Comparison::kExact : Comparison::kTolerance,
              std::string(column.name) + " of the sampled sums of products"};
  row.scope = Scope::kLane;
  row.read = [&column](const LaneView& v) {
    Column found;
    for (const AccumulatorHealth& health : v.sums) {
      if (column.count != nullptr) found.integers.push_back(health.*column.count);
      if (column.moment != nullptr) found.reals.push_back(health.*column.moment);
    }
    return found;
  };
  return row;
}

void add_sums_rows(std::vector<RuleRow>& rows) {
  rows.push_back(
      lane_row("sums/step", "steps that sampled sums of products", [](const LaneView& v) {
        return std::vector<uint64_t>(v.sums_steps.begin(), v.sums_steps.end());
      }));
  for (const HealthColumn& column : health_columns()) rows.push_back(sums_row(column));
}

// Nothing where no capture was replayed.
Column gradient_norms_of_step(const LaneView& v) {
  const auto width = static_cast<std::ptrdiff_t>(v.gradient_norms.size() / v.loss.size());
  const auto begin = v.gradient_norms.begin() + v.step * width;
  return {.integers = {}, .reals = {begin, begin + width}};
}

std::vector<RuleRow> make_rows() {
  std::vector<RuleRow> rows;
  rows.push_back({.rule = {"bits_hash", Comparison::kExact, "hash of every value's bits"},
                  .scope = Scope::kSite,
                  .read =
                      [](const LaneView& v) {
                        return Column{.integers = v.run.bits_hash(v.lane, v.step), .reals = {}};
                      },
                  .measured = site_count,
                  .magnitude = nullptr});
  rows.push_back({.rule = {"scale", Comparison::kExact, "factor the site's values carry"},
                  .scope = Scope::kSite,
                  .read =
                      [](const LaneView& v) {
                        return Column{.integers = {}, .reals = v.run.scale(v.lane, v.step)};
                      },
                  .measured = site_count,
                  .magnitude = nullptr});
  for (const Statistic& statistic : statistics()) rows.push_back(statistic_row(statistic));
  rows.push_back(update_row("stagnant", Comparison::kExact, "updates that moved no weight",
                            [](const UpdateStats& u) { return u.stagnant; }));
  rows.push_back(update_row("count", Comparison::kExact, "weights updated",
                            [](const UpdateStats& u) { return u.count; }));
  rows.push_back(update_row("update_sq", Comparison::kTolerance, "sum of squared updates",
                            [](const UpdateStats& u) { return u.update_sq; }));
  rows.push_back(update_row("weight_sq", Comparison::kTolerance, "sum of squared weights",
                            [](const UpdateStats& u) { return u.weight_sq; }));
  rows.push_back({.rule = {"loss", Comparison::kTolerance, "training loss of the step"},
                  .scope = Scope::kStep,
                  .read =
                      [](const LaneView& v) {
                        return Column{.integers = {},
                                      .reals = {v.loss[static_cast<size_t>(v.step)]}};
                      },
                  .measured = nullptr,
                  .magnitude = nullptr});
  rows.push_back(scaler_row("scale", "loss scale that applied",
                            [](const ScalerRecord& s) { return s.scale; }));
  rows.push_back(scaler_row("found_inf", "a gradient was not finite",
                            [](const ScalerRecord& s) { return s.found_inf; }));
  rows.push_back(scaler_row("skipped", "the step was skipped",
                            [](const ScalerRecord& s) { return s.skipped; }));
  rows.push_back(scaler_row("growth_tracker", "clean steps since the scale last moved",
                            [](const ScalerRecord& s) { return s.growth_tracker; }));
  rows.push_back(scaler_row("culprit_site", "first non-finite site of a step with found_inf",
                            [](const ScalerRecord& s) { return s.culprit_site; }));
  rows.push_back(evaluation_row("steps_done", Comparison::kExact, "when it was evaluated",
                                [](const Evaluation& e) { return e.steps_done; }));
  rows.push_back(evaluation_row("loss", Comparison::kTolerance, "held-out loss",
                                [](const Evaluation& e) { return e.loss; }));
  rows.push_back(evaluation_row("accuracy", Comparison::kTolerance, "held-out accuracy, 0..1",
                                [](const Evaluation& e) { return e.accuracy; }));
  rows.push_back(evaluation_row("example_count", Comparison::kExact, "examples held out",
                                [](const Evaluation& e) { return e.example_count; }));
  add_sums_rows(rows);
  add_histogram_rows(rows);
  rows.push_back({.rule = {"gradient_norm", Comparison::kTolerance, "before clipping; NaN: none"},
                  .scope = Scope::kStep,
                  .read =
                      [](const LaneView& v) {
                        if (v.gradient_norm.empty()) return Column{};  // files of version 1
                        return Column{.integers = {},
                                      .reals = {v.gradient_norm[static_cast<size_t>(v.step)]}};
                      },
                  .measured = nullptr,
                  .magnitude = nullptr});
  rows.push_back({.rule = {"gradient_norms", Comparison::kTolerance,
                           "of captures: norm of every parameter's gradient; NaN: none"},
                  .scope = Scope::kParameter,
                  .read = gradient_norms_of_step,
                  .measured = nullptr,
                  .magnitude = nullptr});
  rows.push_back({.rule = {"lr", Comparison::kTolerance, "learning rate of every parameter group"},
                  .scope = Scope::kStep,
                  .read =
                      [](const LaneView& v) {
                        if (v.lr.empty()) return Column{};
                        const auto groups =
                            static_cast<std::ptrdiff_t>(v.run.options().groups.size() + 1);
                        const auto begin = v.lr.begin() + v.step * groups;
                        return Column{.integers = {}, .reals = {begin, begin + groups}};
                      },
                  .measured = nullptr,
                  .magnitude = nullptr});
  rows.push_back({.rule = {"attempts", Comparison::kExact, "how often the step was computed"},
                  .scope = Scope::kStep,
                  .read =
                      [](const LaneView& v) {
                        return Column{.integers = {static_cast<uint64_t>(
                                          v.attempts[static_cast<size_t>(v.step)])},
                                      .reals = {}};
                      },
                  .measured = nullptr,
                  .magnitude = nullptr});
  rows.push_back({.rule = {"died_at", Comparison::kExact, "step after which the lane stopped"},
                  .scope = Scope::kLane,
                  .read =
                      [](const LaneView& v) {
                        const auto lane = static_cast<size_t>(v.lane);
                        return Column{.integers = {},
                                      .reals = {static_cast<double>(v.run.lanes()[lane].died_at)}};
                      },
                  .measured = nullptr,
                  .magnitude = nullptr});
  return rows;
}

}  // namespace

LaneView::LaneView(const RunFile& run_file, int lane_index)
    : run(run_file),
      lane(lane_index),
      loss(run.loss(lane)),
      gradient_norm(run.gradient_norm(lane)),
      lr(run.lr(lane)),
      gradient_norms(run.gradient_norms(lane)),
      attempts(run.attempts(lane)),
      histogram_steps(run.histogram_steps(lane)),
      evaluations(run.evaluations(lane)),
      sums_steps(run.sums_steps(lane)),
      sums(run.sums(lane)) {
  for (size_t column = 0; column < run.scaler_columns(lane); ++column) {
    scalers.push_back(run.scalers(lane, column));
  }
}

void LaneView::load_step(int64_t new_step) {
  step = new_step;
  count = run.count(lane, "count", step);
  compared = run.count(lane, "compared", step);
  nonzero = count;
  const std::vector<uint64_t> zeros = run.count(lane, "source_zero", step);
  for (size_t i = 0; i < nonzero.size(); ++i) nonzero[i] -= zeros[i];
  updates = run.updates(lane, step);
}

std::span<const RuleRow> rule_rows() {
  static const std::vector<RuleRow> rows = make_rows();
  return rows;
}

std::vector<CheckRule> check_rules() {
  std::vector<CheckRule> rules;
  for (const RuleRow& row : rule_rows()) rules.push_back(row.rule);
  return rules;
}

}  // namespace lockstep

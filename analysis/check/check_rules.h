// The table of what `check` compares, and how each row reads its numbers. Only check.cc and the
// table itself (check_rules.cc) need this; users of the check include check.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/check/check.h"
#include "src/record/run/run_file.h"

namespace lockstep {

// One lane of a run with what is read once per lane, and what is read once per step.
struct LaneView {
  LaneView(const RunFile& run, int lane);
  void load_step(int64_t step);

  const RunFile& run;
  int lane;
  std::vector<double> loss, gradient_norm, lr;  // lr: [step * parameter groups]
  std::vector<double> gradient_norms;           // [step * parameters]; of captures
  std::vector<int32_t> attempts;
  std::vector<int64_t> histogram_steps;
  std::vector<std::vector<ScalerRecord>> scalers;  // by column of loss_scale
  std::vector<Evaluation> evaluations;
  std::vector<int64_t> sums_steps;      // with samples of the sums of products
  std::vector<AccumulatorHealth> sums;  // of them all, by site
  // Of the loaded step, by site:
  int64_t step = -1;
  std::vector<uint64_t> count, compared, nonzero;
  std::vector<UpdateRecord> updates;
};

// The numbers of one rule at one step. Exactly one of the two vectors is used.
struct Column {
  std::vector<uint64_t> integers;
  std::vector<double> reals;
};

enum class Scope : uint8_t {
  kSite,        // one number per site, every step
  kStep,        // one number per step
  kParameter,   // one number per parameter of the graph, every step
  kRecord,      // numbers by site and bin, in the steps that both runs have a record of
  kEvaluation,  // one number per evaluation, once per lane
  kLane,        // numbers of the whole lane, once
};

struct RuleRow {
  CheckRule rule;
  Scope scope;
  std::function<Column(const LaneView&)> read;
  // kSite: at which sites there is a number at all (null: at all). Where neither run has one,
  // nothing is compared; where only one has, that is a difference.
  std::function<uint64_t(const LaneView&, size_t site)> measured;
  // kTolerance, by site: the magnitude that a rounding error is relative to, where it is more than
  // the value itself (sums of terms of both signs). Null: the value.
  std::function<std::vector<double>(const LaneView&)> magnitude;
};

std::span<const RuleRow> rule_rows();

}  // namespace lockstep

// See draw_choice.h.
#include "analysis/check/draw_choice.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "analysis/check/joined_values.h"
#include "analysis/pair/parameter_state.h"
#include "src/capture/script_line.h"

namespace lockstep {
namespace {

// Of captures that say so.
bool has_other_seed(const JudgedRun& run) {
  const std::string before = script_value(run.baseline.run, kSeedLine);
  const std::string now = script_value(run.facts, kSeedLine);
  return !before.empty() && !now.empty() && before != now;
}

// batches_hash takes masks in the order of their nodes' names and the inputs that a graph reads,
// which other code changes: labels that are read through an index are no input any more.
bool has_same_draws(const JudgedRun& run) {
  return run.facts.batches_hash == run.baseline.run.batches_hash ||
         have_same_draws(run.baseline.run.lines, run.facts.lines);
}
std::string other_draws_text(const JudgedRun& run) {
  if (!has_other_seed(run)) return "the batches or masks are not the baseline's";
  const std::string line = run.script.line_of(kSeedLine);
  return fmt::format("the script has seed {}{}, the baseline's {}",
                     script_value(run.facts, kSeedLine), line.empty() ? "" : " (" + line + ")",
                     script_value(run.baseline.run, kSeedLine));
}

}  // namespace

DrawChoice choose_draw(const JudgedRun& run, std::span<const JoinedParameter> joined) {
  DrawChoice chosen;
  // Other weights took other random numbers, so that the masks after them differ, too.
  const auto other = [&](std::string why, bool from_weights = false) {
    if (chosen.draw == Draw::kSame ||
        (from_weights && !chosen.has_other_weights && !has_other_seed(run))) {
      chosen.why = std::move(why);
      chosen.has_other_weights = from_weights;
    }
    chosen.draw = Draw::kOther;
  };
  if (!has_same_draws(run)) other(other_draws_text(run));
  if (run.facts.batches_hash.empty() && run.facts.options.seed != run.baseline.run.options.seed) {
    other(fmt::format("the run has seed {}, the baseline seed {}", run.facts.options.seed,
                      run.baseline.run.options.seed));
  }
  if (run.facts.batches_hash.empty() && run.facts.data != run.baseline.run.data) {
    other(fmt::format("the run has the data {}, the baseline {}", run.facts.data,
                      run.baseline.run.data));
  }
  const Ensemble& ulps = run.baseline.ensemble(Draw::kSame);
  const size_t lane = run.reference_lane();
  if (ulps.lanes.empty() || lane == run.lane_here.size()) return chosen;
  if (is_replaced(run, joined)) {
    other("parameters of the baseline have no counterpart with their values",
          /*from_weights=*/true);
  }
  const LaneSummary& now = run.lane_now(lane);
  for (size_t s = 0; s < run.match.sites.size(); ++s) {
    const SiteFacts& site = run.baseline.run.sites[s];
    if (run.match.sites.after_of(s) < 0 || !is_stored_weight(site)) continue;
    const Band* before = ulps.lanes[lane].find(MetricId::kFirstMagnitude, s);
    const Measured* after =
        now.find(MetricId::kFirstMagnitude, static_cast<size_t>(run.match.sites.after_of(s)));
    if (before == nullptr || after == nullptr) continue;
    if (std::fabs(before->centre - after->value) < kSameDrawOctaves) continue;
    const auto at = static_cast<size_t>(run.match.sites.after_of(s));
    const std::string line = run.script.line_of_node(run.file.sites().sites[at].node);
    other(fmt::format("the weights of {}{} differ at the start", site.layer,
                      line.empty() ? "" : " (" + line + ")"),
          /*from_weights=*/true);
  }
  return chosen;
}

}  // namespace lockstep

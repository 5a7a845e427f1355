// The rules of `check`: one for every recorded quantity to compare, derived from its row
// (src/record/run/quantities.h), and one for the step at which a lane died.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include "src/record/run/run_reader.h"

namespace lockstep {

// One lane of a run: data read once per lane, and data read once per step.
class LaneView {
 public:
  LaneView(const RunFile& run, int lane);
  void load_step(int64_t step);

  const RunFile& run() const { return run_; }
  int lane() const { return lane_; }
  const std::string& lane_name() const;
  int64_t step() const { return step_; }
  // The numbers of the loaded step, or of the whole lane if the quantity has no steps.
  Numbers numbers(const Quantity& quantity) const;
  // Is there a number at this site in the loaded step?
  bool has_number(At at, size_t site) const { return has_[static_cast<size_t>(at)][site]; }

 private:
  void find_numbers();

  const RunFile& run_;
  int lane_;
  int64_t step_ = -1;
  std::vector<Numbers> series_;  // narrow quantities, all steps; by index in quantities()
  // The loaded step: quantities of sites, by index in quantities(); and whether there is a number,
  // by At and site.
  std::vector<Numbers> sites_;
  std::array<std::vector<bool>, kAtCount> has_;
};

enum class Scope : uint8_t {
  kSite,        // one number per site, every step
  kStep,        // some numbers, every step
  kParameter,   // one number per parameter of the graph, every step
  kRecord,      // numbers by site and bin, in the steps that both runs recorded
  kEvaluation,  // one number per evaluation, once per lane
  kLane,        // numbers of the whole lane, once
};

struct ExactRule {
  std::string name;  // the run file's dataset, e.g. "counts/to_zero"
  Compared comparison;
  std::string help;
  Scope scope;
  std::function<Numbers(const LaneView&)> read;
  At at = At::kEverySite;  // of kSite
  // kTolerance, by site: the magnitude to which a rounding error is relative, if it is larger than
  // the value itself (sums of terms of both signs). Null: the value.
  std::function<std::vector<double>(const LaneView&)> magnitude = nullptr;
};

std::span<const ExactRule> exact_rules();
// Whether a rule compares hashes of values, whose distance means nothing.
bool compares_hashes(std::string_view rule);

}  // namespace lockstep

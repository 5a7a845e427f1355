// Shows where and when a lane lost something, as one table: layers x steps, by role and measure.
// A measure is a share in 0..1 of one site in one step; THE table is step_measures(). Steps are
// joined to at most kMostStepColumns columns, sites to layers and roles; a cell is the largest
// share in it, so that one bad step among many stays visible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/run/nonfinite_counts.h"
#include "src/graph/site.h"

namespace lockstep {

inline constexpr int64_t kMostStepColumns = 60;
// Smaller shares make no cell.
inline constexpr double kLeastShownShare = 1e-4;

// What the measures need of one site in one step of one lane.
struct SiteReading {
  const SiteRecord& lane;
  const SiteRecord& reference;
  NonfiniteCounts nonfinite;  // without what is intended
};

struct StepMeasure {
  std::string_view name, help;  // help: of what it is the share
  double (*share)(const SiteReading& reading, const Site& site);
};
std::span<const StepMeasure> step_measures();

struct StepCell {
  uint32_t layer = 0, column = 0;
  double share = 0;
  int32_t site = -1;  // the one with that share
};
// The cells of one role and measure, by layer and column.
struct StepGrid {
  Role role = Role::kActivation;
  size_t measure = 0;
  std::vector<StepCell> cells;
};
struct StepMap {
  std::vector<std::string> layers;                   // in execution order
  std::vector<std::pair<int64_t, int64_t>> columns;  // first and last step
  std::vector<StepGrid> grids;                       // those with cells
};

class StepMapTally {
 public:
  // `sites` must outlive the object.
  StepMapTally(const SiteTable& sites, int64_t steps);
  // All by site id.
  void add(int64_t step, std::span<const SiteRecord> lane, std::span<const SiteRecord> reference,
           std::span<const NonfiniteCounts> nonfinite);
  StepMap map() const;

 private:
  const SiteTable& sites_;
  StepMap empty_;                   // layers and columns
  std::vector<uint32_t> layer_of_;  // by site id
  std::vector<Role> roles_;
  std::vector<size_t> role_of_;  // by site id
  // By role and measure, then by layer and column; empty: no cell so far.
  std::vector<std::vector<StepCell>> worst_;
};

}  // namespace lockstep

// The table of fields, and the merging of two records.
#include "emulation/stats/accumulator_health.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

using Health = AccumulatorHealth;
constexpr HealthColumn kColumns[] = {
    {.name = "samples", .count = &Health::samples},
    {.name = "compared", .count = &Health::compared},
    {.name = "addends", .count = &Health::addends},
    {.name = "swamped", .count = &Health::swamped},
    {.name = "err_sq", .moment = &Health::err_sq},
    {.name = "exact_sq", .moment = &Health::exact_sq},
    {.name = "err_max_share", .moment = &Health::err_max_share},
};

}  // namespace

std::span<const HealthColumn> health_columns() {
  return kColumns;
}

void AccumulatorHealth::merge(const AccumulatorHealth& other) {
  samples += other.samples;
  compared += other.compared;
  addends += other.addends;
  swamped += other.swamped;
  err_sq += other.err_sq;
  exact_sq += other.exact_sq;
  err_max_share = std::max(err_max_share, other.err_max_share);
}

void AccumulatorHealth::divide_by(double scale) {
  const double square = scale * scale;
  if (!(square > 0 && std::isfinite(square))) return;
  err_sq /= square;
  exact_sq /= square;
}

}  // namespace lockstep

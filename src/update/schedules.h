// How the learning rate changes over a run.
// One row per schedule, each a closed form of the step, in double. Knows no optimizer: one schedule
// applies to every group's own rate. Skipped steps count, as in torch.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "src/update/hyper_parameters.h"

namespace lockstep {

// The inputs of a schedule's formula. Both counts exclude the warm-up.
struct SchedulePoint {
  double lr;      // the group's own
  int64_t step;   // 0-based
  int64_t steps;  // the length of the schedule, at least 1
};

struct Schedule {
  std::string_view name, help, source;
  std::span<const HyperParameter> parameters;
  double (*lr)(const HyperNumbers&, const SchedulePoint&);
};

std::span<const Schedule> schedules();
const Schedule& find_schedule(std::string_view name);  // Throws: InputError, did-you-mean

// "cosine:steps=1000,warmup=100". Throws: InputError.
HyperChoice parse_schedule(std::string_view text);
// Throws: InputError with every value outside its range, or a warm-up that leaves no step.
void check_schedule(const HyperChoice& schedule);

// The learning rate of 0-based `step`. Every schedule has
//   warmup          steps before it starts, in which the rate rises linearly from
//   warmup_factor   times lr to lr (torch's LinearLR, then the schedule: SequentialLR)
//   steps           warm-up included, 0: `run_steps`
double scheduled_lr(const HyperChoice& schedule, double lr, int64_t step, int64_t run_steps);

}  // namespace lockstep

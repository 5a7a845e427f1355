// The table of schedules: the closed forms of torch.optim.lr_scheduler. They use only + - * / and
// the project's own exp and log, so that every machine computes the same rates.
#include "src/update/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "emulation/kernels/args/optimizer_args.h"
#include "emulation/math/exp_log.h"
#include "src/core/error.h"
#include "src/core/find_row.h"

namespace lockstep {
namespace {

using Range = HyperParameter::Range;

// cos(pi x) for 0 <= x, by Taylor's series about 0 of cos and sin on |y| <= pi/4: the first term
// left out is below 1e-20.
double cos_pi(double x) {
  constexpr double kPi = 3.14159265358979323846;
  constexpr double kQuarter = 0.25, kHalf = 0.5;
  constexpr int kTerms = 10;
  x -= 2 * std::floor(x / 2);       // a period of cos(pi x)
  if (x > 1) x = 2 - x;             // even about 1
  const bool negative = x > kHalf;  // odd about 1/2
  if (negative) x = 1 - x;
  const bool by_sine = x > kQuarter;  // cos(pi x) = sin(pi (1/2 - x))
  const double y = kPi * (by_sine ? kHalf - x : x), square = y * y;
  double term = by_sine ? y : 1, sum = term;
  for (int k = 1; k <= kTerms; ++k) {
    const int n = 2 * k + (by_sine ? 1 : 0);
    term *= -square / (static_cast<double>(n) * (n - 1));
    sum += term;
  }
  return negative ? -sum : sum;
}

double progress(const SchedulePoint& at) {
  return static_cast<double>(std::min(at.step, at.steps)) / static_cast<double>(at.steps);
}

double constant_lr(const HyperNumbers&, const SchedulePoint& at) {
  return at.lr;
}
double step_lr(const HyperNumbers& n, const SchedulePoint& at) {
  return at.lr * integer_power(n["gamma"], at.step / static_cast<int64_t>(n["step_size"]));
}
double exponential_lr(const HyperNumbers& n, const SchedulePoint& at) {
  return at.lr * integer_power(n["gamma"], at.step);
}
double cosine_lr(const HyperNumbers& n, const SchedulePoint& at) {
  const double floor = n["eta_min"];
  return floor + (at.lr - floor) * (1 + cos_pi(progress(at))) / 2;
}
double linear_lr(const HyperNumbers& n, const SchedulePoint& at) {
  const double start = n["start_factor"];
  return at.lr * (start + (n["end_factor"] - start) * progress(at));
}
double polynomial_lr(const HyperNumbers& n, const SchedulePoint& at) {
  const double left = 1 - progress(at), power = n["power"];
  if (left == 0) return 0;
  if (power == std::floor(power)) return at.lr * integer_power(left, static_cast<int64_t>(power));
  return at.lr * lockstep_exp(power * lockstep_log(left));
}

// The numbers of every row.
constexpr HyperParameter kSteps = {.name = "steps",
                                   .range = Range::kCount,
                                   .help = "steps of the schedule, warm-up included; 0: the run's"};
constexpr HyperParameter kWarmup = {.name = "warmup",
                                    .range = Range::kCount,
                                    .help = "steps of linear rise before the schedule starts"};
constexpr HyperParameter kWarmupFactor = {.name = "warmup_factor",
                                          .range = Range::kUpToOne,
                                          .help = "start of the warm-up, as a fraction of lr"};

constexpr HyperParameter kConstant[] = {kSteps, kWarmup, kWarmupFactor};
constexpr HyperParameter kStep[] = {
    kSteps,
    kWarmup,
    kWarmupFactor,
    {.name = "step_size",
     .initial = 30,
     .range = Range::kPositiveCount,
     .help = "steps between two drops"},
    {.name = "gamma", .initial = 0.1, .range = Range::kNonNegative, .help = "factor of each drop"},
};
constexpr HyperParameter kExponential[] = {
    kSteps,
    kWarmup,
    kWarmupFactor,
    {.name = "gamma",
     .initial = 0.999,
     .range = Range::kNonNegative,
     .help = "factor of each step"},
};
constexpr HyperParameter kCosine[] = {
    kSteps,
    kWarmup,
    kWarmupFactor,
    {.name = "eta_min", .range = Range::kNonNegative, .help = "the rate at the end"},
};
constexpr HyperParameter kLinear[] = {
    kSteps,
    kWarmup,
    kWarmupFactor,
    {.name = "start_factor",
     .initial = 1,
     .range = Range::kNonNegative,
     .help = "factor of lr at the start"},
    {.name = "end_factor", .range = Range::kNonNegative, .help = "factor of lr at the end"},
};
constexpr HyperParameter kPolynomial[] = {
    kSteps,
    kWarmup,
    kWarmupFactor,
    {.name = "power", .initial = 1, .range = Range::kExponent, .help = "exponent"},
};

const Schedule kSchedules[] = {
    {.name = "constant",
     .help = "lr",
     .source = "torch without a scheduler",
     .parameters = kConstant,
     .lr = constant_lr},
    {.name = "step",
     .help = "lr gamma^floor(t / step_size)",
     .source = "torch StepLR",
     .parameters = kStep,
     .lr = step_lr},
    {.name = "exponential",
     .help = "lr gamma^t",
     .source = "torch ExponentialLR",
     .parameters = kExponential,
     .lr = exponential_lr},
    {.name = "cosine",
     .help = "eta_min + (lr - eta_min) (1 + cos(pi t / steps)) / 2, then eta_min",
     .source = "torch CosineAnnealingLR up to T_max; Loshchilov & Hutter 2017",
     .parameters = kCosine,
     .lr = cosine_lr},
    {.name = "linear",
     .help = "lr (start_factor + (end_factor - start_factor) t / steps), then lr end_factor",
     .source = "torch LinearLR",
     .parameters = kLinear,
     .lr = linear_lr},
    {.name = "polynomial",
     .help = "lr (1 - t / steps)^power, then 0",
     .source = "torch PolynomialLR",
     .parameters = kPolynomial,
     .lr = polynomial_lr},
};

}  // namespace

std::span<const Schedule> schedules() {
  return kSchedules;
}

const Schedule& find_schedule(std::string_view name) {
  return find_row("schedule", name, kSchedules);
}

HyperChoice parse_schedule(std::string_view text) {
  const size_t colon = text.find(':');
  HyperChoice choice{std::string(text.substr(0, colon)), {}};
  if (colon != std::string_view::npos) {
    choice.values = parse_hyper_values("schedule '" + choice.name + "'", text.substr(colon + 1));
  }
  return choice;
}

void check_schedule(const HyperChoice& choice) {
  const Schedule& schedule = find_schedule(choice.name);
  ProblemList problems("schedule '" + choice.name + "'");
  check_hyper_values(choice, schedule.parameters, problems);
  const auto steps = choice.values.find("steps"), warmup = choice.values.find("warmup");
  if (steps != choice.values.end() && warmup != choice.values.end() && steps->second != 0 &&
      steps->second <= warmup->second) {
    problems.add(
        fmt::format("steps {}, warmup {}: warmup < steps required", steps->second, warmup->second),
        "steps include the warm-up");
  }
  problems.throw_if_any();
}

double scheduled_lr(const HyperChoice& choice, double lr, int64_t step, int64_t run_steps) {
  const Schedule& schedule = find_schedule(choice.name);
  const HyperNumbers numbers(schedule.parameters, choice.values);
  const int64_t warmup = static_cast<int64_t>(numbers["warmup"]);
  const int64_t given = static_cast<int64_t>(numbers["steps"]);
  if (step < warmup) {
    const double start = numbers["warmup_factor"];
    return lr * (start + (1 - start) * (static_cast<double>(step) / static_cast<double>(warmup)));
  }
  const int64_t span = (given == 0 ? run_steps : given) - warmup;
  return schedule.lr(numbers, {lr, step - warmup, std::max<int64_t>(span, 1)});
}

}  // namespace lockstep

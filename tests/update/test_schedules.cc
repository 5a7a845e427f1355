// Learning rates by hand, their ends, and rejected numbers. tests/integration compares with torch.
#include "src/update/schedules.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace lockstep;

namespace {

double lr(const char* schedule, int64_t step, int64_t run_steps = 100) {
  return scheduled_lr(parse_schedule(schedule), 0.5, step, run_steps);
}

}  // namespace

TEST_CASE("schedules: by hand") {
  CHECK(lr("constant", 99) == 0.5);
  CHECK(lr("step:step_size=10,gamma=0.5", 9) == 0.5);
  CHECK(lr("step:step_size=10,gamma=0.5", 29) == 0.125);
  CHECK(lr("exponential:gamma=0.5", 3) == 0.0625);
  CHECK(lr("cosine", 0) == 0.5);
  CHECK(lr("cosine:eta_min=0.1", 50) == doctest::Approx(0.3).epsilon(1e-15));
  CHECK(lr("cosine", 25) == doctest::Approx(0.25 * (1 + std::sqrt(0.5))).epsilon(1e-15));
  CHECK(lr("linear", 25) == 0.375);
  CHECK(lr("polynomial:power=2", 50) == 0.125);
  CHECK(lr("linear:steps=10", 5, 100) == 0.25);  // its own steps, not the run's
}

TEST_CASE("schedules: a warm-up rises linearly, then the schedule spans the rest") {
  const char* text = "linear:steps=30,warmup=10,warmup_factor=0.5";
  CHECK(lr(text, 0) == 0.25);
  CHECK(lr(text, 5) == 0.375);
  CHECK(lr(text, 10) == 0.5);
  CHECK(lr(text, 20) == 0.25);
  CHECK(lr(text, 30) == 0);
}

TEST_CASE("schedules: every row stays within [0, lr] and is constant after its end") {
  for (const Schedule& schedule : schedules()) {
    CAPTURE(schedule.name);
    const std::string text = std::string(schedule.name) + ":steps=20,warmup=3";
    for (int64_t step = 0; step < 40; ++step) {
      CHECK(lr(text.c_str(), step) >= 0);
      CHECK(lr(text.c_str(), step) <= 0.5);
    }
    CHECK(&find_schedule(schedule.name) == &schedule);
  }
  for (const char* text : {"cosine:steps=20,eta_min=0.125", "linear:steps=20,end_factor=0.25"}) {
    CHECK(lr(text, 20) == 0.125);
    CHECK(lr(text, 1000) == 0.125);
  }
}

TEST_CASE("schedules: what is refused, and why") {
  CHECK_THROWS_WITH_AS(find_schedule("cosin"), doctest::Contains("cosine"), InputError);
  CHECK_THROWS_WITH_AS(parse_schedule("cosine:steps"), doctest::Contains("NAME=NUMBER"),
                       InputError);
  CHECK_THROWS_WITH_AS(parse_schedule("cosine:steps=x"), doctest::Contains("steps=x"), InputError);
  CHECK_THROWS_WITH_AS(check_schedule(parse_schedule("cosine:gamma=1")),
                       doctest::Contains("no such number"), InputError);
  CHECK_THROWS_WITH_AS(check_schedule(parse_schedule("step:step_size=2.5")),
                       doctest::Contains("a whole number"), InputError);
  for (const char* text : {"cosine:steps=10,warmup=10", "linear:steps=5,warmup=10"}) {
    CHECK_THROWS_WITH_AS(check_schedule(parse_schedule(text)),
                         doctest::Contains("warmup < steps required"), InputError);
  }
  check_schedule(parse_schedule("cosine:steps=11,warmup=10"));
  check_schedule(parse_schedule("cosine:warmup=10"));
  CHECK_THROWS_WITH_AS(check_schedule(parse_schedule("polynomial:power=1e30")),
                       doctest::Contains("0 <= power <= 1000"), InputError);
}

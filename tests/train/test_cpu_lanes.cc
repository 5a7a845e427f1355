// Lanes on the CPU's own units: they have the bits of the software lane with the unit's
// accumulator; fallbacks and refusals.
#include "emulation/kernels/cpu_unit.h"
#include "src/core/error.h"
#include "src/train/lane/lane.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

RunOptions lenet(std::vector<std::string> lanes) {
  RunOptions options = small_run(std::move(lanes), 2);
  options.model = "lenet";
  options.batch = 3;  // an odd number of products in the sums over examples
  return options;
}

// Runs `lane` and its software twin `same_as` and compares all their records.
void check_same_lanes(const std::string& lane, const std::string& same_as) {
  CAPTURE(lane);
  Recorder hardware, software;
  LockstepRun hardware_run(lenet({"fp32", lane}));
  const RunState a = run(hardware_run, hardware);
  const RunState b = run(lenet({"fp32", same_as}), software);
  CHECK(hardware_run.description().lanes[1].engine == "cpu");
  CHECK(!hardware_run.description().lanes[1].fallbacks.empty());
  check_same_state(a, b);
  REQUIRE(hardware.steps.size() == 2);
  for (size_t s = 0; s < 2; ++s) CHECK(check_same_step(hardware.steps[s], software.steps[s]) > 60);
  REQUIRE(hardware.evaluations.size() == 1);
  CHECK(same(hardware.evaluations[0].loss[1], software.evaluations[0].loss[1]));
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("cpu engine: bf16 lanes are the software lane with VDPBF16PS's accumulator") {
  if (!cpu_has(CpuUnit::kAvx512Bf16)) {
    MESSAGE("SKIPPED: bf16 lanes: this CPU has no AVX512-BF16");
    return;
  }
  check_same_lanes("torch-autocast-bf16@cpu", "torch-autocast-bf16@avx512-bf16");
}

TEST_CASE("cpu engine: fp16 lanes with FP32 sums are the software lane") {
  if (!cpu_has(CpuUnit::kF16c) || !cpu_has(CpuUnit::kFma)) {
    MESSAGE("SKIPPED: fp16 lanes: this CPU has no F16C or no FMA");
    return;
  }
  check_same_lanes("torch-autocast-fp16@cpu", "torch-autocast-fp16");
}

TEST_CASE(
    "cpu engine: FP16 sums need AVX512-FP16, AMX sums need AMX; otherwise the lane is refused") {
  const std::string amx = write_policy(
      "amx", "extends = \"torch-autocast-bf16\"\n[gemm]\naccumulator = \"amx_bf16\"\n");
  struct Wanted {
    CpuUnit unit;
    std::string lane, software, needed_for;
  };
  const Wanted wanted[] = {{CpuUnit::kAvx512Fp16, "pure-fp16@cpu", "pure-fp16", "sums by fp16"},
                           {CpuUnit::kAmxBf16, amx + "@cpu", amx + "@amx", "sums by amx_bf16"}};
  for (const Wanted& w : wanted) {
    CAPTURE(w.lane);
    if (cpu_has(w.unit)) {
      check_same_lanes(w.lane, w.software);
      continue;
    }
    const std::string unit(cpu_unit_info(w.unit).name);
    CHECK_THROWS_WITH_AS(LockstepRun(lenet({"fp32", w.lane})),
                         doctest::Contains(("this CPU has no " + unit).c_str()), InputError);
    CHECK_THROWS_WITH_AS(LockstepRun(lenet({"fp32", w.lane})),
                         doctest::Contains(w.needed_for.c_str()), InputError);
  }
}

TEST_CASE("cpu engine: missing operations run on the software kernels and are listed") {
  if (!cpu_has(CpuUnit::kFma)) {
    MESSAGE("SKIPPED: tf32 lanes: this CPU has no FMA");
    return;
  }
  const LockstepRun run(lenet({"fp32", "tf32@cpu"}));
  const std::vector<std::string>& fallbacks = run.description().lanes[1].fallbacks;
  CHECK(holds(fallbacks, "rounding to tf32 nearest_away"));
  CHECK(holds(fallbacks, "relu"));
  CHECK(holds(fallbacks, "sgd"));
  CHECK(!holds(fallbacks, "linear"));
  CHECK(run.description().lanes[0].fallbacks.empty());
  for (size_t i = 0; i < fallbacks.size(); ++i) {
    CHECK(std::find(fallbacks.begin() + static_cast<int64_t>(i) + 1, fallbacks.end(),
                    fallbacks[i]) == fallbacks.end());
  }
}

TEST_CASE("cpu engine: lanes with fixed names do not run on it") {
  for (const char* name : {"fp32@cpu", "fp64@cpu", "twin@cpu"}) {
    CHECK_THROWS_WITH_AS(describe_lane(name), doctest::Contains("leave '@cpu' out"), InputError);
  }
}

// Software lanes whose products are formed by the devices' kernels: they have the bits of the same
// lanes without a device, and list the sums that stay on the CPU.
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda/model_gemm.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

// Chooses a device for a scope.
class ChosenDevice {
 public:
  explicit ChosenDevice(const char* name) { select_software_device(name); }
  ~ChosenDevice() { select_software_device(""); }
  ChosenDevice(const ChosenDevice&) = delete;
  ChosenDevice& operator=(const ChosenDevice&) = delete;
};

RunOptions lenet_lanes(std::vector<std::string> lanes) {
  RunOptions options = small_run(std::move(lanes), 2);
  options.model = "lenet";
  options.batch = 3;
  return options;
}

}  // namespace

TEST_CASE("software device: lanes have the bits of lanes without it") {
  const std::vector<std::string> lanes = {"fp32", "torch-autocast-fp16@hopper",
                                          "fp8-current@hopper", "tf32@ampere", "pure-fp16"};
  Recorder plain, modelled;
  const RunState a = run(lenet_lanes(lanes), plain);
  const int64_t before = cuda::model_products(cuda::host_device());
  RunState b;
  {
    const ChosenDevice device("cuda-host");
    b = run(lenet_lanes(lanes), modelled);
  }
  CHECK(cuda::model_products(cuda::host_device()) > before + 100);
  check_same_state(a, b);
  REQUIRE(plain.steps.size() == 2);
  REQUIRE(modelled.steps.size() == 2);
  for (size_t s = 0; s < 2; ++s) CHECK(check_same_step(plain.steps[s], modelled.steps[s]) > 60);
}

TEST_CASE("software device: sums that stay on the CPU are listed") {
  const std::string kahan =
      write_policy("kahan", "extends = \"fp32\"\n[gemm]\naccumulator = \"fp32_kahan\"\n");
  const ChosenDevice device("cuda-host");
  LockstepRun run(lenet_lanes({"fp32", kahan}));
  CHECK(run.description().lanes[0].fallbacks.empty());
  CHECK(run.description().lanes[1].fallbacks == std::vector<std::string>{"sums by fp32_kahan"});
}

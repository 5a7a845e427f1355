// The rows: the layout check, every instruction, the rules that can be switched.
#include "emulation/verify/nvidia/nvidia_units.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "emulation/verify/nvidia/nvidia_check.h"
#include "emulation/verify/nvidia/nvidia_model.h"

namespace lockstep {
namespace {

constexpr size_t kInstructionRows = 20, kProbeRows = 5;

// The strings that the rows point into, kept until the process ends.
struct RowTexts {
  std::vector<NvidiaUnit> units = nvidia_units();
  std::vector<std::string> unit_models, probe_names;

  RowTexts() {
    if (units.size() != kInstructionRows || nvidia_probes().size() != kProbeRows) {
      throw std::logic_error("NVIDIA units: as many rows as instructions and probes");
    }
    const mma::Device* device = mma::cuda_device(nullptr);
    for (const NvidiaUnit& unit : units) {
      const mma::Instruction& first = unit.instructions.front();
      const bool runs = device != nullptr && first.runs_on(device->capability()) &&
                        hardware_of_capability(device->capability()) != nullptr;
      unit_models.push_back(runs ? nvidia_model(device->capability(), first).name : "by chip");
    }
    for (const NvidiaProbe& probe : nvidia_probes()) {
      probe_names.push_back("probe " + std::string(probe.question));
    }
  }
};
const RowTexts& texts() {
  static const RowTexts rows;
  return rows;
}

// A GPU whose chip is in the table of hardware.
mma::Device* known_device(std::string* why_not) {
  mma::Device* device = mma::cuda_device(why_not);
  if (device == nullptr) return nullptr;
  if (hardware_of_capability(device->capability()) != nullptr) return device;
  if (why_not != nullptr) *why_not = "no model of this chip: " + device->description();
  return nullptr;
}

bool device_available(std::string* why_not) {
  return known_device(why_not) != nullptr;
}

template <size_t kIndex>
bool unit_available(std::string* why_not) {
  const mma::Device* device = known_device(why_not);
  if (device == nullptr) return false;
  const mma::Instruction& first = texts().units[kIndex].instructions.front();
  if (first.runs_on(device->capability())) return true;
  if (why_not != nullptr) *why_not = "not an instruction of " + device->description();
  return false;
}

template <size_t kIndex>
UnitResult run_unit(const VerifyOptions& options) {
  return check_unit(*known_device(nullptr), texts().units[kIndex], options);
}
template <size_t kIndex>
UnitResult run_probe(const VerifyOptions& options) {
  return check_probe(*known_device(nullptr), nvidia_probes()[kIndex], options);
}
UnitResult run_layouts(const VerifyOptions& options) {
  return check_layouts(*known_device(nullptr), options);
}

template <size_t... kUnits, size_t... kProbes>
std::vector<HardwareUnit> make_rows(std::index_sequence<kUnits...>,
                                    std::index_sequence<kProbes...>) {
  const RowTexts& t = texts();
  std::vector<HardwareUnit> rows = {
      {kNvidiaGroup, "GPU", "operand layouts", "exact integers", device_available, run_layouts}};
  (rows.push_back({kNvidiaGroup, t.units[kUnits].unit, t.units[kUnits].instruction,
                   t.unit_models[kUnits], unit_available<kUnits>, run_unit<kUnits>}),
   ...);
  (rows.push_back({kNvidiaGroup, t.probe_names[kProbes], nvidia_probes()[kProbes].asks,
                   "the default", device_available, run_probe<kProbes>}),
   ...);
  return rows;
}

}  // namespace

std::span<const HardwareUnit> nvidia_hardware_units() {
  static const std::vector<HardwareUnit> rows = make_rows(
      std::make_index_sequence<kInstructionRows>(), std::make_index_sequence<kProbeRows>());
  return rows;
}

}  // namespace lockstep

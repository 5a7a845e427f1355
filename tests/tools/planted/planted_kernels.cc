// `lockstep` with one defect in its kernels, named by the environment variable LOCKSTEP_PLANT.
// Without it the program is `lockstep`, bit for bit. The linker option --wrap (cmake/tests.cmake)
// calls planted_kernels() where the program calls active_kernels() or software_engine_kernels().
// The other engines have no defect.
#include <cstdlib>
#include <map>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "src/core/find_row.h"
#include "tests/tools/planted/defect.h"

namespace lockstep {
namespace {

std::vector<Defect> all_defects() {
  std::vector<Defect> all;
  for (const auto rows : {rounding_defects(), layer_defects(), step_defects()}) {
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

// Each set of this machine, with the defect; empty without one.
std::map<const KernelSet*, KernelSet> planted_sets() {
  std::map<const KernelSet*, KernelSet> sets;
  const char* name = std::getenv("LOCKSTEP_PLANT");
  if (name == nullptr || *name == '\0') return sets;
  const std::vector<Defect> known = all_defects();
  const Defect& defect = find_row("LOCKSTEP_PLANT", name, known);
  for (const KernelSet* set : available_kernel_sets()) {
    defect.plant(sets.emplace(set, *set).first->second);
  }
  return sets;
}

}  // namespace

// The names that --wrap gives to the function that it replaces and to the replacement.
const KernelSet& unwrapped_active_kernels() asm("__real__ZN8lockstep14active_kernelsEv");
const KernelSet& planted_kernels() asm("__wrap__ZN8lockstep14active_kernelsEv");
const KernelSet& planted_engine_kernels() asm("__wrap__ZN8lockstep23software_engine_kernelsEv");

const KernelSet& true_kernels() {
  return unwrapped_active_kernels();
}

const KernelSet& planted_kernels() {
  static const std::map<const KernelSet*, KernelSet> sets = planted_sets();
  const KernelSet& set = true_kernels();
  return sets.empty() ? set : sets.at(&set);
}

const KernelSet& planted_engine_kernels() {
  return planted_kernels();
}

}  // namespace lockstep

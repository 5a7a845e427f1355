// Facts about the functions, read from their formulas.
#include "emulation/math/elementwise_functions.h"

#include "emulation/math/single_numbers.h"

namespace lockstep {
namespace {

#include "emulation/math/elementwise_functions-inl.h"

}  // namespace

bool saves_output(Unary function) {
#define LOCKSTEP_ENTRY(Name) Name##Function<SingleNumbers<float>>::kSavesOutput,
  constexpr bool kTable[] = {LOCKSTEP_UNARY_FUNCTIONS(LOCKSTEP_ENTRY)};
#undef LOCKSTEP_ENTRY
  return kTable[static_cast<size_t>(function)];
}

}  // namespace lockstep

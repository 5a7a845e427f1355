// The test programs' entry point.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "tests/support/folders.h"

namespace lockstep::testing {

extern const char* const kSourceFolder = LOCKSTEP_SOURCE_DIR;
extern const char* const kBinaryFolder = LOCKSTEP_BINARY_DIR;

}  // namespace lockstep::testing

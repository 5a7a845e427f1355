// Where the tests find the project's files, and where they may write. Defined in doctest_main.cc,
// the only file that is compiled anew for another clone.
#pragma once

namespace lockstep::testing {

extern const char* const kSourceFolder;  // the root of the source tree
extern const char* const kBinaryFolder;  // the build folder

}  // namespace lockstep::testing

// The whole program as a function, so that targets run commands without starting a process.
#define main lockstep_program_main
#include "src/cli/main.cc"  // NOLINT: its main, under another name
#undef main

namespace lockstep::fuzz {

int run_main(int argc, char** argv) {
  return lockstep_program_main(argc, argv);
}

}  // namespace lockstep::fuzz

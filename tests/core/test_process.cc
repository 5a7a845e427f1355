// This process runs; one that has ended, or another one with its number, does not.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/core/process.h"

namespace lockstep {
namespace {

TEST_CASE("a process runs until it ends; an older one with its number does not run") {
  ProcessMark mark = this_process();
  CHECK(is_running(mark) == Running::kYes);
  mark.started -= 1;
  CHECK(is_running(mark) == Running::kNo);
  mark.started = 0;
  CHECK(is_running(mark) == Running::kNotKnown);

  const pid_t child = fork();
  if (child == 0) _exit(0);
  REQUIRE(child > 0);
  ProcessMark ended = this_process();
  ended.id = child;
  waitpid(child, nullptr, 0);
  CHECK(is_running(ended) == Running::kNo);
  ended.host += "-other";
  CHECK(is_running(ended) == Running::kNotKnown);
}

}  // namespace
}  // namespace lockstep

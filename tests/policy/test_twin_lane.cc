// Names of twin lanes.
#include "src/policy/twin_lane.h"

#include <doctest/doctest.h>

namespace lockstep {

TEST_CASE("a twin's number and name are inverse") {
  for (int number = 1; number <= kMostTwins; ++number) {
    CHECK(twin_number(twin_name(number)) == number);
  }
  CHECK(twin_name(1) == "twin");
  CHECK(twin_name(2) == "twin2");
  for (const char* other : {"", "fp32", "twins", "twin0", "twin1", "twin02", "twin2x", "twin100",
                            "twin@cpu", "twin-1", "Twin"}) {
    CAPTURE(other);
    CHECK(twin_number(other) == 0);
  }
}

}  // namespace lockstep

// Messages: one problem, several problems, and the nearest known name.
#include <doctest/doctest.h>

#include "src/core/error.h"

using namespace lockstep;

TEST_CASE("one problem carries its hint") {
  const InputError error("format 'fp61': unknown", "did you mean 'fp16'?");
  CHECK(std::string(error.what()) == "format 'fp61': unknown; did you mean 'fp16'?");
  REQUIRE(error.problems().size() == 1);
  CHECK(error.problems()[0] == error.what());
}

TEST_CASE("all problems of an input are reported together") {
  ProblemList problems("policy 'a.toml'");
  CHECK(problems.empty());
  problems.throw_if_any();
  problems.add("line 3: no op 'conv3d'", "did you mean 'conv2d'?");
  problems.add("line 9: lr = -1, must be > 0");
  try {
    problems.throw_if_any();
    FAIL("nothing thrown");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()) ==
          "policy 'a.toml': 2 problems\n"
          "  - line 3: no op 'conv3d'; did you mean 'conv2d'?\n"
          "  - line 9: lr = -1, must be > 0");
    CHECK(error.problems().size() == 2);
  }
  CHECK_THROWS_AS(InputError("nothing", std::vector<std::string>()), std::logic_error);
}

TEST_CASE("the nearest name is suggested") {
  const std::vector<std::string> formats = {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3"};
  CHECK(did_you_mean("fp61", formats) == "did you mean 'fp16'?");  // a swap is likelier than...
  CHECK(did_you_mean("fp63", formats) == "did you mean 'fp64'?");  // ... a wrong letter
  CHECK(did_you_mean("BF16", formats) == "did you mean 'bf16'?");
  CHECK(did_you_mean("fp8e4m3", formats) == "did you mean 'fp8_e4m3'?");
  CHECK(did_you_mean("int", formats) == "known: fp64, fp32, tf32, bf16, fp16, fp8_e4m3");
  CHECK(did_you_mean("x", {}) == "there are no names to choose from");
  // Names that continue after '_' or '-' come before near ones.
  const std::vector<std::string> longer = {"fp64", "fp4_e2m1", "hopper_fp16", "hopper_bf16"};
  CHECK(did_you_mean("fp4", longer) == "did you mean 'fp4_e2m1'?");
  CHECK(did_you_mean("Hopper", longer) == "did you mean one of hopper_fp16, hopper_bf16?");
  CHECK(did_you_mean("apex", {"fp32", "apex-o1", "apex-o2"}) ==
        "did you mean one of apex-o1, apex-o2?");
}

TEST_CASE("of very many problems the first are kept, the others only counted") {
  ProblemList problems("file 'x'");
  const size_t count = ProblemList::kMostKept + 7;
  for (size_t i = 0; i < count; ++i) problems.add("problem " + std::to_string(i));
  CHECK(problems.count() == count);
  try {
    problems.throw_if_any();
    FAIL("nothing thrown");
  } catch (const InputError& error) {
    CHECK(error.problems().size() == ProblemList::kMostKept + 1);
    CHECK(error.problems().back() == "... and 7 more");
  }
}

TEST_CASE("a problem is one line, whatever it quotes") {
  const std::string hostile = "x\n  - line 9: not a problem\x1b[2J\xff";
  const std::string shown = "x\\u000a  - line 9: not a problem\\u001b[2J\\xff";
  CHECK(std::string(InputError(hostile, hostile).what()) == shown + "; " + shown);
  ProblemList problems("file '" + hostile + "'");
  problems.add(hostile);
  problems.add("second");
  try {
    problems.throw_if_any();
    FAIL("nothing thrown");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()) ==
          "file '" + shown + "': 2 problems\n  - " + shown + "\n  - second");
    CHECK(error.lines() == std::vector<std::string>{"file '" + shown + "': " + shown,
                                                    "file '" + shown + "': second"});
  }
  CHECK(InputError("alone").lines() == std::vector<std::string>{"alone"});
}

TEST_CASE("a very long problem keeps its start, its end and its hint") {
  const InputError error("policy '" + std::string(1'000'000, 'x') + "': unknown", "known: y");
  const std::string text = error.what();
  CHECK(text.size() < 8192);
  CHECK(text.starts_with("policy 'xxx"));
  CHECK(text.find("bytes left out") != std::string::npos);
  CHECK(text.ends_with("xxx': unknown; known: y"));
  // Characters are not cut.
  std::string euros;
  for (int i = 0; i < 10'000; ++i) euros += "\xe2\x82\xac";
  CHECK(std::string(InputError(euros).what()).find("\\x") == std::string::npos);
}

// Of the lines that set one thing, the one that was changed is named.
#include "analysis/check/script_places.h"

#include <doctest/doctest.h>

namespace lockstep {
namespace {

RunFacts with(ScriptLines lines) {
  RunFacts facts;
  facts.lines = std::move(lines);
  return facts;
}
ScriptLine line(const char* of, const char* at, const char* hash) {
  return {.of = of, .at = at, .hash = hash};
}

const RunFacts kBefore = with({line("optimizer", "a.py:5", "call"),
                               line("optimizer lr", "a.py:6", "LR"),
                               line("optimizer lr", "a.py:1", "0.1"),
                               line("module fc", "a.py:3", "Linear"),
                               line("tensor bn.shift", "a.py:4", "full"),
                               {.of = "seed", .value = "7"}});

TEST_CASE("a number is named where its value was changed, else where it is given") {
  RunFacts after = kBefore;
  CHECK(ScriptPlaces(kBefore, after).line_of("optimizer lr") == "a.py:6");
  CHECK(ScriptPlaces(kBefore, after).changed_line_of("optimizer lr").empty());
  after.lines[2] = line("optimizer lr", "a.py:2", "0.2");
  CHECK(ScriptPlaces(kBefore, after).line_of("optimizer lr") == "a.py:2");
  CHECK(ScriptPlaces(kBefore, after).changed_line_of("optimizer lr") == "a.py:2");
}

TEST_CASE("a module whose code changed, or that of a tensor of its own") {
  RunFacts after = kBefore;
  CHECK(ScriptPlaces(kBefore, after).changed_thing_in("bn").empty());
  after.lines[4].hash = "full of 2";
  CHECK(ScriptPlaces(kBefore, after).changed_thing_in("bn") == "tensor bn.shift");
  CHECK(ScriptPlaces(kBefore, after).changed_thing_in("b").empty());
  after.lines[3].hash = "Linear of 2";
  CHECK(ScriptPlaces(kBefore, after).changed_thing_in("fc") == "module fc");
}

TEST_CASE(
    "the code of a module's class, or of a class around it; one more equal line is new, too") {
  RunFacts before = kBefore;
  before.lines.push_back({.of = "module b.0", .value = "class Block"});
  before.lines.push_back(line("class Block", "a.py:20", "x = x / 2"));
  RunFacts after = before;
  CHECK(ScriptPlaces(before, after).changed_thing_in("b.0.fc").empty());
  after.lines.push_back(line("class Block", "a.py:21", "x = x / 2"));
  const ScriptPlaces places(before, after);
  CHECK(places.changed_thing_in("b.0.fc") == "class Block");
  CHECK(places.line_of("class Block") == "a.py:21");
  CHECK(places.changed_thing_in("b.1.fc").empty());
}

TEST_CASE("a number that has no line is named with the thing it is of") {
  const ScriptPlaces places(kBefore, kBefore);
  CHECK(places.line_of("optimizer eps") == "a.py:5");
  CHECK(places.line_of("clipping").empty());
  CHECK(places.line_of("seed").empty());
}

TEST_CASE(
    "stored and updated values have the line of their module, of their own, of the optimizer") {
  const ScriptPlaces places(kBefore, kBefore);
  CHECK(places.line_of_node("storage:p:fc.weight") == "a.py:3");
  CHECK(places.line_of_node("storage:b:bn.shift") == "a.py:4");
  CHECK(places.line_of_node("optimizer:fc.weight") == "a.py:5");
  CHECK(places.line_of_node("storage:images").empty());
  CHECK(places.line_of_node("n12").empty());
}

TEST_CASE("a parameter without gradient is named where new code freezes it") {
  RunFacts after = kBefore;
  after.lines.push_back(line("frozen fc.weight", "a.py:9", "requires_grad_"));
  CHECK(ScriptPlaces(kBefore, after).line_of_frozen("fc.weight") == "a.py:9");
  CHECK(ScriptPlaces(kBefore, after).line_of_frozen("fc.bias") == "a.py:3");
  CHECK(ScriptPlaces(after, after).line_of_frozen("fc.weight") == "a.py:3");
  CHECK(ScriptPlaces(RunFacts{}, after).line_of_frozen("fc.weight") == "a.py:3");
}

TEST_CASE("without lines of a baseline the first is named, and without lines none") {
  CHECK(ScriptPlaces(RunFacts{}, kBefore).line_of("optimizer lr") == "a.py:6");
  CHECK(ScriptPlaces(kBefore, RunFacts{}).line_of("optimizer lr").empty());
}

TEST_CASE("values in words") {
  CHECK(script_value(kBefore, kSeedLine) == "7");
  CHECK(script_value(kBefore, kTiesLine).empty());
}

}  // namespace
}  // namespace lockstep

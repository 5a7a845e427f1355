// The search for culprits, among layers whose faults are known.
#include "analysis/search/culprits.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "analysis/search/trial_runs.h"

namespace lockstep {
namespace {

LayerSet layers(size_t count) {
  LayerSet out;
  for (size_t i = 0; i < count; ++i) out.push_back(fmt::format("l{}", i));
  return out;
}

// Fails if one of these groups is low as a whole.
struct Faults {
  std::vector<LayerSet> groups;
  size_t replays = 0, runs = 0, most = SIZE_MAX;

  bool fails(const LayerSet& low) const {
    return std::ranges::any_of(groups, [&](const LayerSet& group) {
      return std::ranges::all_of(group,
                                 [&](auto& layer) { return std::ranges::count(low, layer) > 0; });
    });
  }
  LayerSet found(const LayerSet& low) {
    return find_culprits(low, [&](const std::vector<LayerSet>& sets) {
      std::vector<bool> out;
      for (const LayerSet& set : sets) {
        if (runs == most) break;
        ++runs;
        out.push_back(fails(set));
      }
      replays += (out.size() + kLanesPerReplay - 1) / kLanesPerReplay;
      return out;
    });
  }
};

TEST_CASE("a single culprit is found in a logarithm of runs, wherever it is") {
  for (const size_t count : {2, 3, 4, 5, 17, 64}) {
    size_t levels = 0;
    for (size_t n = 1; n < count; n *= kLanesPerReplay) ++levels;
    for (size_t i = 0; i < count; ++i) {
      CAPTURE(count);
      CAPTURE(i);
      Faults faults{{{fmt::format("l{}", i)}}};
      CHECK(faults.found(layers(count)) == LayerSet{fmt::format("l{}", i)});
      CHECK(faults.replays <= levels);
    }
  }
}

TEST_CASE("several culprits are found together") {
  for (size_t i = 0; i < 30; ++i) {
    for (size_t j = i + 1; j < 30; ++j) {
      Faults faults{{{fmt::format("l{}", i)}, {fmt::format("l{}", j)}}};
      CHECK(faults.found(layers(30)) == LayerSet{fmt::format("l{}", i), fmt::format("l{}", j)});
      CHECK(faults.runs < 30);
    }
  }
}

TEST_CASE("of layers that spoil the run only together, one is found that ends it") {
  for (size_t i = 0; i < 20; ++i) {
    for (size_t j = i + 1; j < 20; ++j) {
      Faults faults{{{fmt::format("l{}", i), fmt::format("l{}", j)}}};
      LayerSet rest = layers(20);
      const LayerSet culprits = faults.found(rest);
      CHECK(culprits.size() == 1);
      std::erase_if(rest, [&](auto& layer) { return std::ranges::count(culprits, layer) > 0; });
      CHECK_FALSE(faults.fails(rest));
      CHECK(faults.replays <= 6);  // twice log4(20), rounded up
    }
  }
}

TEST_CASE("it gives up where the format does not suit the network, and where runs end") {
  Faults all;
  for (const std::string& layer : layers(32)) all.groups.push_back({layer});
  CHECK(all.found(layers(32)).empty());
  CHECK(all.runs <= 4 + 8);
  Faults one{{{"l7"}}};
  one.most = 5;
  CHECK(one.found(layers(32)).empty());
}

}  // namespace
}  // namespace lockstep

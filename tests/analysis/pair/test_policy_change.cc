// What two policies have in common and what not, however they are written.
#include "analysis/pair/policy_change.h"

#include <doctest/doctest.h>

namespace lockstep {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("a policy's change is the settings that differ, however they are written") {
  const PolicyChange change = policy_change(
      "name = \"a\"\n# note\n[loss_scale]\nkind = \"static\"\nscale = 1\n[sums]\nscale = 1\n",
      "name = \"b\"\nsums = {scale = 2}\nloss_scale.scale = 1\nloss_scale.kind = 'dynamic'\n");
  CHECK(change.before == Lines{"loss_scale.kind = \"static\"", "sums.scale = 1"});
  CHECK(change.after == Lines{"loss_scale.kind = \"dynamic\"", "sums.scale = 2"});
}

TEST_CASE("a policy's rules are compared in their order") {
  const std::string a = "[[rule]]\nlayer = \"a\"\ncompute = \"fp32\"\n";
  const std::string b = "[[rule]]\ncompute = \"bf16\"\nlayer = [\"b\", \"c\"]\n";
  const PolicyChange added = policy_change(b, a + b);
  CHECK(added.before.empty());
  CHECK(added.after == Lines{"rule 1: compute = \"fp32\", layer = \"a\""});
  const PolicyChange swapped = policy_change(a + b, b + a);
  CHECK(swapped.before == Lines{"rule 1: compute = \"fp32\", layer = \"a\""});
  CHECK(swapped.after == Lines{"rule 2: compute = \"fp32\", layer = \"a\""});
  const PolicyChange written_otherwise =
      policy_change(a, "[[rule]]\n  compute = 'fp32'  # note\n  layer = 'a'\n");
  CHECK(written_otherwise.before.empty());
  CHECK(written_otherwise.after.empty());
}

TEST_CASE("a policy that is no TOML is compared as a whole") {
  CHECK(policy_change("= x", "= x").before.empty());
  CHECK(policy_change("= x", "a = 1").after == Lines{"a = 1"});
}

}  // namespace
}  // namespace lockstep

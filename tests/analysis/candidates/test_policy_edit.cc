// Edits merged into policy files, read back by the policy reader.
#include "analysis/candidates/policy_edit.h"

#include <doctest/doctest.h>

#include <array>

#include "src/policy/find_policy.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

Policy edited(std::string_view base, std::vector<RemedyEdit> edits) {
  return parse_policy(edited_policy(base, "fixed", edits), "fixed.toml");
}

TEST_CASE("keys replace those of their table, the other keys stay") {
  const Policy policy = edited("extends = 'half:1'\nversion = '7'\n[storage]\nbuffer = 'bf16'",
                               {{"", "[storage]\nweight = 'fp32'"}});
  CHECK(policy.name == "fixed");
  CHECK(policy.version.empty());
  CHECK(policy.extends == "half:1");
  CHECK(policy.weight->name == "fp32");
  CHECK(policy.buffer->name == "bf16");
  CHECK(policy.input->name == "fp16");
}

TEST_CASE("rules are added after those of the file, where they win") {
  const Policy policy = edited("[[rule]]\nlayer = 'fc1'\ncompute = 'fp16'",
                               {{"", "[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'"},
                                {"", "[[rule]]\nlayer = 'fc2'\ncompute = 'bf16'"}});
  REQUIRE(policy.rules.size() == 3);
  CHECK(policy.rules[0].compute->name == "fp16");
  CHECK(policy.rules[1].compute->name == "fp32");
  CHECK(policy.rules[2].layer == "fc2");
}

TEST_CASE("another kind of loss scale begins afresh, but for how it is used") {
  const std::string base =
      "[loss_scale]\nkind = 'static'\ninit_scale = 8.0\nclip = 'before_unscale'";
  const Policy dynamic = edited(base, {{"", "[loss_scale]\nkind = 'torch-dynamic'"}});
  CHECK(dynamic.loss_scale.init_scale == 65536);
  CHECK(dynamic.loss_scale_use.clip_before_unscale);
  CHECK(edited(base, {{"", "[loss_scale]\nkind = 'none'"}}).loss_scale.kind == "none");
  CHECK(edited(base, {{"", "[loss_scale]\ninit_scale = 16.0"}}).loss_scale.init_scale == 16);
}

TEST_CASE("the lines to add are the edits together, without the file") {
  const std::array edits = {RemedyEdit{"", "[storage]\nweight = 'fp32'"},
                            RemedyEdit{"", "[[rule]]\nlayer = 'a'\ncompute = 'fp32'"},
                            RemedyEdit{"", "", "", {"eps:n1=1"}}};
  CHECK(added_lines(edits) ==
        "[storage]\nweight = \"fp32\"\n\n[[rule]]\ncompute = \"fp32\"\nlayer = \"a\"\n");
  CHECK(added_lines(std::span(edits).subspan(2)).empty());
  CHECK(testing::has(testing::error_of([] { edited("[storage", {}); }), "not TOML"));
}

}  // namespace
}  // namespace lockstep

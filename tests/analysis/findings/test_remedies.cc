// The remedies of every kind of finding at every site of a recorded run: their edits are policies
// that can be read.
#include "analysis/findings/remedies.h"

#include <doctest/doctest.h>

#include <set>

#include "analysis/candidates/policy_edit.h"
#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/remedy_edits.h"
#include "src/graph/json.h"
#include "src/policy/find_policy.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

TEST_CASE("every edit is TOML that a policy of any preset takes, or a change of the run") {
  const TempDir dir;
  const RunFile run = record(dir.file("run.h5"), small_run());
  const Graph step = graph_from_json(run.graph_json());
  const RunOptions options = run.options();
  int64_t made = 0;
  std::set<FindingKind> without;
  for (const std::string preset : {"half", "torch-autocast-fp16", "pure-bf16", "fp8-delayed"}) {
    const Policy policy = find_policy(preset);
    const std::string base = "extends = \"" + policy.label() + "\"\n";
    for (const FindingKindRow& row : finding_kinds()) {
      CAPTURE(row.name);
      int64_t of_kind = 0;
      for (const Site& site : run.sites().sites) {
        const bool of_storage =
            row.kind == FindingKind::kStorageOverflow || row.kind == FindingKind::kStorageUnderflow;
        if (of_storage != is_storage(site)) continue;
        const Finding finding{.kind = row.kind,
                              .site = site.id,
                              .backward = site.scaled,
                              .format = "fp16",
                              .value = 1e6,
                              .limit = 65504,
                              .fitting_scale = 256,
                              .rounded = site.id};
        const FindingContext found{finding, run.sites(), true, run.steps()};
        const std::vector<Remedy> remedies = row.remedies(found);
        CHECK_FALSE(remedies.empty());
        for (const Remedy& remedy : remedies) {
          CHECK_FALSE(remedy.words.empty());
          if (remedy.edits == nullptr) continue;
          for (const RemedyEdit& edit : remedy.edits({found, policy, step, options})) {
            CAPTURE(edit.words);
            CHECK_FALSE(edit.words.empty());
            CHECK(edit.toml.empty() == edit.changes_run());
            CHECK_NOTHROW(parse_policy(edited_policy(base, "x", {&edit, 1}), "x.toml"));
            ++of_kind;
          }
        }
      }
      made += of_kind;
      if (of_kind == 0) without.insert(row.kind);
    }
  }
  CHECK(made > 1000);
  // Only a lane with [loss_scale] clip = "before_unscale" has the edit of a scaled clip.
  CHECK(without == std::set{FindingKind::kScaledClip});
}

TEST_CASE("a scaled clip is mended by the policy that made it") {
  const Policy policy = parse_policy(
      "extends = 'torch-autocast-fp16'\n[loss_scale]\nclip = 'before_unscale'", "x.toml");
  const Finding finding{.kind = FindingKind::kScaledClip};
  const SiteTable sites;
  const Graph step;
  const RunOptions options;
  const auto edits = clip_after_unscale({{finding, sites, true, 10}, policy, step, options});
  REQUIRE(edits.size() == 1);
  CHECK(edits[0].toml == "[loss_scale]\nclip = \"after_unscale\"\n");
}

TEST_CASE("the report's words are those of the remedies, without what reaches further") {
  const SiteTable sites{};
  const Finding finding{.kind = FindingKind::kNoScaler, .fitting_scale = 0x1p15};
  const FindingContext found{finding, sites, false, 10};
  CHECK(remedy_words(found) == std::vector<std::string>{"a loss scale (GradScaler)",
                                                        "a static loss scale of 2^15", "bf16"});
}

}  // namespace
}  // namespace lockstep

// Vanished gradients are the missing loss scale's fault where a scale would have kept them.
#include "analysis/findings/missing_scaler.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "analysis/findings/finding_kinds.h"
#include "src/policy/find_policy.h"
#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

using testing::chain;
using testing::chain_formats;
using testing::clean_step;

// Site 2 of the chain, fc2's gradient, is `largest` in FP32, all others are 1.
std::vector<SiteRecord> with_gradient(double largest) {
  std::vector<SiteRecord> reference = clean_step();
  reference[2].stats.abs_max = largest;
  return reference;
}

Finding vanished(FindingKind kind = FindingKind::kNoGradient) {
  return {.kind = kind, .steps = 4, .site = 2, .backward = true, .format = "fp16", .share = 1};
}

std::vector<Finding> folded(std::vector<Finding> findings, double largest = 3e-8,
                            const char* policy = "pure-fp16", double scale = 1,
                            const std::vector<std::string>& formats = chain_formats()) {
  static const SiteTable sites = chain();
  MissingScaler missing(sites, formats);
  missing.add(with_gradient(largest));
  std::vector<ScalerRecord> scalers(4);
  for (ScalerRecord& s : scalers) s.scale = scale;
  missing.fold(find_policy(policy), scalers, findings);
  return findings;
}

TEST_CASE("a vanished gradient and an underflow become one finding, which says what is missing") {
  Finding underflow = vanished(FindingKind::kUnderflow);
  underflow.site = 3;
  const Finding overflow{.kind = FindingKind::kOverflow, .site = 0};
  const auto found = folded({overflow, vanished(), underflow});
  REQUIRE(found.size() == 2);
  CHECK(found[0].kind == FindingKind::kOverflow);
  const Finding& f = found[1];
  CHECK(f.kind == FindingKind::kNoScaler);
  CHECK(f.site == 2);
  CHECK(f.consequences == std::vector<int32_t>{3});
  CHECK(f.value == 3e-8);
  CHECK(f.limit == 0x1p-24);
  const SiteTable sites = chain();
  const FindingContext context{f, sites, false, 10};
  CHECK(row_of(f.kind).sentence(context) ==
        "no loss scale although gradients vanish: fc2 linear_backward_input: the whole gradient "
        "became zero in 4 of 10 steps, largest 3.0e-8, fp16's smallest 6.0e-8, and 1 more layer "
        "gets none");
}

TEST_CASE("sums of products, which the reference lacks, are as large as their result") {
  SiteTable sites = chain();
  std::vector<std::string> formats = chain_formats();
  std::vector<SiteRecord> reference = with_gradient(3e-8);
  Site sums = sites.sites[2];
  sums.id = static_cast<int32_t>(sites.sites.size());
  sums.point = Point::kAccumulator;
  for (Site& site : sites.sites) site.node = "n" + std::to_string(site.id);
  sums.node = "n2";
  sites.sites.push_back(sums);
  formats.push_back("fp16");
  reference.emplace_back();
  Finding finding = vanished(FindingKind::kUnderflow);
  finding.site = sums.id;
  MissingScaler missing(sites, formats);
  missing.add(reference);
  std::vector<Finding> findings = {finding};
  missing.fold(find_policy("pure-fp16"), std::vector<ScalerRecord>(4), findings);
  CHECK(findings.at(0).kind == FindingKind::kNoScaler);
  CHECK(findings[0].value == 3e-8);
  CHECK(findings[0].fitting_scale == 0x1p13);
}

// 3e-8 has exponent -25, fp16's smallest normal -14: 10 octaves above it are 21 octaves up. A
// gradient of 1 elsewhere may grow by 2^15 / 4.
TEST_CASE("the static scale raises the vanished gradient as far as the largest one allows") {
  CHECK(folded({vanished()}).at(0).fitting_scale == 0x1p13);
  CHECK(folded({vanished()}, 0x1p-16).at(0).fitting_scale == 0x1p12);    // 10 + 2 octaves
  CHECK(std::isnan(folded({vanished()}, 0x1p-30).at(0).fitting_scale));  // 2^13 is not enough
}

TEST_CASE("no accusation: a scale, no small range, a scale per tensor, another kind") {
  CHECK(folded({vanished()}, 3e-8, "pure-fp16", 1024).at(0).kind == FindingKind::kNoGradient);
  const std::vector<std::string> bf16(5, "bf16"), fp8(5, "fp8_e5m2");
  CHECK(folded({vanished()}, 3e-8, "pure-bf16", 1, bf16).at(0).kind == FindingKind::kNoGradient);
  CHECK(folded({vanished()}, 3e-8, "fp8-delayed", 1, fp8).at(0).kind == FindingKind::kNoGradient);
  CHECK(folded({vanished()}, 3e-8, "pure-fp16", 1, {}).at(0).kind == FindingKind::kNoGradient);
  CHECK(folded({vanished(FindingKind::kSwamping)}).at(0).kind == FindingKind::kSwamping);
  Finding forward = vanished(FindingKind::kUnderflow);
  forward.site = 0;
  CHECK(folded({forward}).at(0).kind == FindingKind::kUnderflow);
  Finding by_rule = vanished();  // the policy's own scale of this layer
  by_rule.scale = 256;
  CHECK(folded({by_rule}).at(0).kind == FindingKind::kNoGradient);
  CHECK(folded({}).empty());
}

}  // namespace
}  // namespace lockstep

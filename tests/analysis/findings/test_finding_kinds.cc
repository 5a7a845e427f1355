// The rows of kinds, and the numbers in their sentences.
#include "analysis/findings/finding_kinds.h"

#include <doctest/doctest.h>

#include <set>

#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

TEST_CASE("every kind has its row, in the order of the kinds, with a sentence of its own") {
  const SiteTable computed = testing::chain(), stored = testing::stored_chain();
  std::set<std::string> names;
  for (size_t i = 0; i < finding_kinds().size(); ++i) {
    const FindingKindRow& row = finding_kinds()[i];
    CAPTURE(row.name);
    CHECK(row.kind == static_cast<FindingKind>(i));
    CHECK(&row_of(row.kind) == &row);
    CHECK(names.insert(std::string(row.name)).second);
    const bool of_storage =
        row.kind == FindingKind::kStorageOverflow || row.kind == FindingKind::kStorageUnderflow;
    const SiteTable& sites = of_storage ? stored : computed;
    const Finding finding{.kind = row.kind,
                          .site = of_storage ? 0 : 1,
                          .format = "fp16",
                          .value = 1.1e5,
                          .limit = 65504,
                          .share = 0.5,
                          .rounded = 0,
                          .text = "eps"};
    const FindingContext context{finding, sites, true, 10};
    const std::string sentence = row.sentence(context);
    CHECK_FALSE(sentence.empty());
    CHECK(sentence.back() != '.');
    CHECK_FALSE(row.remedies(context).empty());
    CHECK_FALSE(row.rule.empty());
  }
  CHECK(finding_kinds().size() == static_cast<size_t>(FindingKind::kDrift) + 1);
}

TEST_CASE("an overflow says place, source line, value and limit") {
  SiteTable sites = testing::chain();
  sites.sites[1].source_line = "model.py:41";
  const Finding finding{.site = 1, .format = "fp16", .value = 112345, .limit = 65504};
  const FindingContext context{finding, sites, true, 10};
  const FindingKindRow& row = row_of(FindingKind::kOverflow);
  CHECK(row.sentence(context) ==
        "fc2 linear (model.py:41): its result reaches 1.1e5, fp16 ends at 65504");
  CHECK(row.follows(context) == "Loss scaling cannot help: it is the forward pass");
}

TEST_CASE("storage: the value is named, with the line that reads a constant") {
  const SiteTable weight = testing::stored_chain();
  Finding finding{.kind = FindingKind::kStorageOverflow,
                  .site = 0,
                  .format = "fp16",
                  .value = 112345,
                  .limit = 65504,
                  .share = 1};
  const auto sentence = [&](const SiteTable& sites) {
    return row_of(finding.kind).sentence({finding, sites, true, 10});
  };
  CHECK(sentence(weight) ==
        "weight fc1.weight reaches 1.1e5 and becomes infinite when stored, fp16 ends at 65504");
  CHECK(row_of(finding.kind).follows({finding, weight, true, 10}) ==
        "Loss scaling cannot help: it is the forward pass");
  SiteTable constant = testing::stored_chain("c:eps", Role::kBuffer);
  constant.sites[0].source_line = "model.py:41";
  finding.kind = FindingKind::kStorageUnderflow;
  CHECK(sentence(constant) == "constant eps (model.py:41) becomes zero when stored in fp16");
  finding.share = 0.034;
  CHECK(sentence(testing::stored_chain("in0", Role::kInput)) ==
        "input in0 loses 3.4% of its energy to underflow when stored in fp16");
  finding.kind = FindingKind::kInvalid;
  finding.site = 2;
  finding.cause = 0;
  CHECK(sentence(constant) ==
        "fc1 linear: its result becomes NaN or infinite because constant eps (model.py:41) became "
        "zero when stored");
}

TEST_CASE("a place names PyTorch's call where Lockstep's op has another name") {
  Site site = testing::chain().sites[1];
  const auto place = [&](const char* op, const char* torch_op, const char* line) {
    site.op = op;
    site.torch_op = torch_op;
    site.source_line = line;
    return place_text(site);
  };
  CHECK(place("linear", "aten.addmm.default", "model.py:41") ==
        "fc2 linear (aten.addmm, model.py:41)");
  CHECK(place("linear", "aten.addmm.default", "") == "fc2 linear (aten.addmm)");
  CHECK(place("linear", "aten.linear.default", "model.py:41") == "fc2 linear (model.py:41)");
  CHECK(place("relu", "aten.relu_.default", "") == "fc2 relu");
  CHECK(place("linear_backward_input", "aten.linear.default", "") == "fc2 linear_backward_input");
  CHECK(place("matmul_backward_a", "aten.bmm.default", "") == "fc2 matmul_backward_a (aten.bmm)");
  CHECK(place("linear", "", "") == "fc2 linear");
  // Outside of modules: the nodes of an autograd.Function.
  site.layer = "custom_gradient";
  const char* function = "lockstep_capture.custom_gradient.default";
  CHECK(place("mul", function, "net.py:7") == "mul (torch.autograd.Function, net.py:7)");
  CHECK(place("custom_gradient", function, "net.py:7") == "torch.autograd.Function (net.py:7)");
}

TEST_CASE("two digits, however small the number") {
  CHECK(two_digits(65504) == "65504");
  CHECK(two_digits(112345) == "1.1e5");
  CHECK(two_digits(0.0341) == "0.034");
  CHECK(two_digits(3.24e-7) == "3.2e-7");
  CHECK(two_digits(0) == "0");
  CHECK(two_digits(312.4) == "312");
  CHECK(two_digits(99.8) == "100");
  CHECK(share_text(1) == "all");
  CHECK(share_text(0.00034) == "0.034%");
}

}  // namespace
}  // namespace lockstep

// The whole text report of a run written by hand, against a golden file; the names it must show.
// LOCKSTEP_REWRITE_GOLDEN=1 rewrites the golden file.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "reports/section.h"
#include "reports/text_writer.h"
#include "src/core/text.h"
#include "src/core/text_file.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Site site(int32_t id, std::string layer, std::string op, Role role, Point point) {
  Site s{};
  s.id = id;
  s.layer = std::move(layer);
  s.op = std::move(op);
  s.role = role;
  s.point = point;
  s.scaled = role == Role::kGradWeight;
  return s;
}

LaneReport lane(std::string name, double end, double accuracy) {
  LaneReport l;
  l.info.name = std::move(name);
  l.info.engine = "software";
  for (int i = 0; i < 100; ++i) l.loss.push_back(2 + (end - 2) * i / 99);
  l.accuracy = accuracy;
  l.seconds = 3.25;
  l.weight_distance = 0.01;
  l.judgement.verdict = Verdict::kFine;
  l.judgement.tail_loss = end;
  l.judgement.gap = end - 0.5;
  l.judgement.margin = 0.03;
  l.judgement.answers = 1000;
  l.judgement.correct_drop = std::lround(1000 * (0.97 - accuracy));
  l.judgement.correct_margin = 10;
  l.judgement.correct_noise = 15.5;
  return l;
}

Report hand_made() {
  Report r;
  r.path = "run.h5";
  r.command_line = "lockstep replay mlp --steps 100 -o run.h5";
  r.options.model = "mlp";
  r.options.steps = 100;
  r.environment = {{"compiler", "GNU"}};
  r.steps = 100;
  r.sites.sites = {site(0, "fc1", "linear", Role::kActivation, Point::kOutput),
                   site(1, "fc1", "linear_backward_weight", Role::kGradWeight, Point::kOutput)};
  r.lanes = {lane("fp32", 0.5, 0.97), lane("twin", 0.501, 0.97),
             lane("torch-autocast-fp16", 0.505, 0.968), lane("pure-fp16", 0.5, 0.1)};
  r.lanes[0].info.is_reference = true;
  r.lanes[0].judgement.verdict = Verdict::kReference;
  r.twin = 1;

  LaneReport& scaled = r.lanes[2];
  scaled.has_scaler = true;
  scaled.skips = {3};
  scaled.scalers = {
      {.loss = "",
       .overflows = {{.step = 3, .scale = 65536, .scale_after = 32768, .culprit_site = 1}},
       .growths = {},
       .final_scale = 32768}};

  LaneReport& broken = r.lanes[3];
  for (size_t i = 40; i < 100; ++i) broken.loss[i] = kNan;
  broken.info.died_at = 46;
  broken.nonfinite_loss_at = 40;
  broken.judgement = {.verdict = Verdict::kBroke, .tail_loss = kNan, .gap = kNan};
  broken.accuracy = broken.weight_distance = kNan;
  SiteHealth lost{
      .steps = 40, .count = 4000, .nonzero = 4000, .to_zero = 1684, .to_subnormal = 400};
  lost.worst_step = 7;
  lost.worst_step_rate = 0.8;
  SiteHealth overflowed{.steps = 40, .count = 4000, .nonzero = 4000};
  overflowed.to_infinity = 12;
  broken.health = {
      {.layer = "fc1",
       .role = Role::kActivation,
       .site = 0,
       .worst = overflowed,
       .measured_sites = 1},
      {.layer = "fc1", .role = Role::kGradWeight, .site = 1, .worst = lost, .measured_sites = 1}};
  broken.underflow = UnderflowCause{.site = 1,
                                    .to_zero_rate = 0.421,
                                    .to_zero = 1684,
                                    .nonzero = 4000,
                                    .worst_step = 7,
                                    .worst_step_rate = 0.8};
  broken.nonfinite = NonfiniteCause{
      .step = 39, .site = 0, .to_infinity = 12, .nan = 0, .count = 100, .feeds_finite = true};
  broken.updates.resize(1);
  broken.updates[0].layer = "fc1";
  broken.updates[0].stagnant = 30;
  broken.updates[0].count = 100;
  return r;
}

TEST_CASE("the report of a hand-made run is the golden one") {
  const std::string golden = std::string(LOCKSTEP_SOURCE_DIR) + "/tests/golden/report.txt";
  const std::string text = report_text(hand_made());
  if (std::getenv("LOCKSTEP_REWRITE_GOLDEN") != nullptr) write_text_file_atomically(golden, text);
  CHECK(text == read_text_file(golden));
}

TEST_CASE("the verdict names the lane that broke, where it broke, and the noise") {
  std::string text = report_text(hand_made(), /*summary_only=*/true);
  std::replace(text.begin(), text.end(), '\n', ' ');  // line breaks do not matter here
  for (const std::string part :
       {"Fine: torch-autocast-fp16.", "Broke: pure-fp16.", "underflow", "layer fc1, grad_weight",
        "42.1%", "step 39", "12 of 100", "twin"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(text.find("Loss scale") == std::string::npos);  // the summary leaves it out
}

TEST_CASE("a lane that is only worse has its non-finite site named before its underflow") {
  Report report = hand_made();
  LaneReport& lane = report.lanes[2];
  lane.judgement.verdict = Verdict::kWorse;
  lane.nonfinite = NonfiniteCause{.step = 36, .site = 0, .count = 100, .feeds_finite = true};
  lane.underflow = report.lanes[3].underflow;
  SiteHealth health{.steps = 100, .count = 100, .nonzero = 100};
  health.infinite_in_steps = 64;
  health.first_nonfinite_step = 36;
  lane.health = {{.layer = "fc1", .role = Role::kActivation, .site = 0, .worst = health}};
  const std::string all = report_text(report);
  std::string text = all;
  std::replace(text.begin(), text.end(), '\n', ' ');
  const size_t cause = text.find("torch-autocast-fp16. First non-finite values: step 36");
  REQUIRE(cause != std::string::npos);
  CHECK(text.find("already infinite before rounding", cause) != std::string::npos);
  CHECK(text.find("torch-autocast-fp16: gradients underflow") > cause);
  CHECK(text.find("2 of 1000 answers (0.20 points) fewer correct") != std::string::npos);
  CHECK(all.find("inf in ") != std::string::npos);
  CHECK(all.find("64.0%") != std::string::npos);
  CHECK(all.find("36 (inf)") != std::string::npos);
}

TEST_CASE("no line is wider than the page, however long the command and the names are") {
  Report report = hand_made();
  report.command_line = "lockstep replay lenet --lanes 'a path with spaces/policy.toml' " +
                        std::string(60, 'x') + " --steps 400 " + std::string(40, 'y') + " -o r.h5";
  report.lanes[3].info.name = std::string(120, 'n') + ".toml";
  const std::string text = report_text(report);
  for (const std::string& line : split(text, '\n')) {
    CAPTURE(line);
    if (line.find("nnnn") == std::string::npos || line.starts_with("  ")) {
      CHECK(display_width(line) <= kTextWidth);
    }
  }
  CHECK(text.find("'a path with spaces/policy.toml' \\\n") != std::string::npos);
}

TEST_CASE("a skipped step is shown with its scale and the site that caused it") {
  const std::string text = report_text(hand_made());
  CHECK(text.find("skipped   2^16  2^15  fc1 linear_backward_weight grad_weight output") !=
        std::string::npos);
}

TEST_CASE("scalers of several losses are shown separately") {
  Report report = hand_made();
  LaneReport& lane = report.lanes[2];
  lane.skips = {3, 7};
  lane.info.scaler_losses = {"box", "class"};
  lane.scalers[0].loss = "box";
  lane.scalers.push_back({.loss = "class",
                          .overflows = {{.step = 7, .scale = 4096, .scale_after = 2048}},
                          .growths = {{.step = 2, .scale = 2048, .scale_after = 4096}},
                          .final_scale = 2048});
  const std::string text = report_text(report);
  for (const std::string part :
       {"torch-autocast-fp16: 2 scalers, one per loss; 2 of 100 steps skipped because of at least "
        "one.",
        "torch-autocast-fp16, loss box: scale 2^15 at the end, caused the skip of 1 of 100 steps",
        "torch-autocast-fp16, loss class: scale 2^11 at the end, caused the skip of 1 of 100 "
        "steps, grew",
        "skipped   2^12  2^11  -", "grew      2^11  2^12", "2^15, 2^11"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST_CASE("every section has its own name and says something about a full run") {
  Report report = hand_made();
  report.options.capture_hash = "0123";  // two sections are for captures only
  CapturedComparison beside;
  beside.first = beside.last = {.step = 0, .captured = 2, .lane = 2, .furthest = "fc.weight"};
  for (LaneReport& lane : report.lanes) lane.beside_captured = beside;
  for (const Section& a : sections()) {
    CAPTURE(a.name);
    CHECK_FALSE(a.write(report).empty());
    for (const Section& b : sections()) CHECK((&a == &b || a.name != b.name));
  }
}

}  // namespace
}  // namespace lockstep

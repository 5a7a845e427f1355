// The numbers of the hand-made report.
#include "tests/reports/run/hand_made_report.h"

#include <cmath>
#include <limits>
#include <utility>

namespace lockstep::testing {
namespace {

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

}  // namespace

LaneReport lane(std::string name, double end, double accuracy) {
  LaneReport l;
  l.info.name = std::move(name);
  l.info.engine = "software";
  for (int i = 0; i < 100; ++i) l.loss.push_back(2 + (end - 2) * i / 99);
  l.accuracy = accuracy;
  l.evaluations = {{.steps_done = 100, .loss = end, .accuracy = accuracy, .example_count = 2000}};
  l.seconds = 3.25;
  l.weight_distance = 0.01;
  l.judgement.verdict = Verdict::kFine;
  l.judgement.tail_loss = end;
  l.judgement.gap = end - 0.5;
  l.judgement.batch_noise = 0.03;
  l.judgement.chaos = 0.001;
  l.judgement.chaos_bound = 0.04;
  l.judgement.answers = 1000;
  l.judgement.correct_drop = std::lround(1000 * (0.97 - accuracy));
  l.judgement.correct_noise = 15.5;
  return l;
}

WatchedReport watched_log_probs() {
  const WatchedStats first = {.count = 4,
                              .compared = 3,
                              .nonfinite = 1,
                              .reference_sum = 6,
                              .error_sum = 0.75,
                              .error_max = 0.5,
                              .kl_sum = 0.1875};
  WatchedStats last = first;
  last.error_sum = 1.5;
  return {.name = "log_probs", .equal = first, .last = last, .last_step = 1, .nonfinite = 2};
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
  for (Site& s : r.sites.sites) s.node = "n0";
  r.sites.sites[0].source_line = "model.py:41";
  r.lanes = {lane("fp32", 0.5, 0.97), lane("twin", 0.501, 0.97),
             lane("torch-autocast-fp16", 0.505, 0.968), lane("pure-fp16", 0.5, 0.1)};
  r.lanes[0].info.is_reference = true;
  r.lanes[0].judgement.verdict = Verdict::kReference;
  r.twins = {1};

  LaneReport& scaled = r.lanes[2];
  scaled.has_scaler = true;
  scaled.skips = {3};
  scaled.scalers = {
      {.loss = "",
       .overflows = {{.step = 3, .scale = 65536, .scale_after = 32768, .culprit_site = 1}},
       .growths = {},
       .final_scale = 32768,
       .scales = std::vector<double>(100, 32768)}};
  for (size_t i = 0; i <= 3; ++i) scaled.scalers[0].scales[i] = 65536;

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
  broken.findings = {{.kind = FindingKind::kOverflow,
                      .lane = 3,
                      .first_step = 39,
                      .last_step = 39,
                      .steps = 1,
                      .site = 0,
                      .format = "fp16",
                      .value = 112345,
                      .limit = 65504,
                      .consequences = {1}},
                     {.kind = FindingKind::kUnderflow,
                      .lane = 3,
                      .first_step = 0,
                      .last_step = 38,
                      .steps = 39,
                      .site = 1,
                      .backward = true,
                      .format = "fp16",
                      .share = 0.421}};
  broken.updates.resize(1);
  broken.updates[0].layer = "fc1";
  broken.updates[0].stagnant = 30;
  broken.updates[0].count = 100;
  return r;
}

void add_pictures(Report& report) {
  LaneReport& lane = report.lanes[3];
  lane.info.site_formats = report.lanes[2].info.site_formats = {"fp16", "fp16"};
  // fc1 lost much in step 1, fc2 a little; "not finite", the first measure, is the gravest.
  lane.views.map = {.layers = {"fc1", "fc2", "quiet"}, .columns = {{0, 0}, {1, 1}}, .grids = {}};
  lane.views.map.grids.push_back({.role = Role::kActivation,
                                  .measure = 0,
                                  .cells = {{.layer = 1, .column = 1, .share = 0.5, .site = 0}}});
  lane.views.map.grids.push_back({.role = Role::kActivation,
                                  .measure = 2,
                                  .cells = {{.layer = 0, .column = 1, .share = 0.25, .site = 0}}});
  lane.views.map.grids.push_back({.role = Role::kGradWeight,
                                  .measure = 2,
                                  .cells = {{.layer = 0, .column = 1, .share = 0.125, .site = 1},
                                            {.layer = 1, .column = 0, .share = 0.01, .site = 1}}});
  lane.views.exponents = {{.site = 0, .first = -3, .counts = {1, 2}, .zeros = 4, .nonfinite = 5},
                          {.site = 1, .first = 0, .counts = {7}}};
  lane.views.growth =
      ErrorGrowth{.step = 0,
                  .forward = {{.layer = "fc1", .site = 0, .total = 1e-3, .local = 1e-4},
                              {.layer = "fc2", .site = 1, .total = 2e-3, .local = kNan}},
                  .backward = {{.layer = "fc1", .site = 1, .total = 3e-3, .local = 1e-4}}};
  lane.views.chains = {
      {.step = 39,
       .links = {{.site = 0,
                  .format = "fp16",
                  .largest = 112345,
                  .limit = 65504,
                  .nonfinite_rate = 0.25,
                  .exponents = SiteExponents{.site = 0, .first = 16, .counts = {3}}},
                 {.site = 1, .format = "fp16", .largest = 2, .limit = 65504, .zeroed_rate = 0.5}},
       .left_out = 2}};
  report.scale_losses = {{.reference = {.site = 1, .first = -30, .counts = {9}},
                          .format = "fp16",
                          .to_zero = {1, 0.5},
                          .overflow = {0, 0.25}}};
  RangeTable& table = report.ranges.emplace_back();
  table.format = &find_format("fp16");
  table.layers.resize(2);
  table.layers[0].layer = "fc1";
  table.layers[0].has_gradients = true;
  table.layers[0].scales = {.lo = -3, .hi = 14};
  table.layers[0].lo_site = "a";
  table.layers[0].hi_site = "b";
  table.layers[1].layer = "relu";
  table.scales = {.lo = -3, .hi = 14};
  report.costs = {
      .gpu = "h100",
      .lanes = {{.lane = 0, .relative_time = 1, .memory = MemoryFacts{.weights = 4096}},
                {.lane = 2, .relative_time = 0.5, .memory = MemoryFacts{.weights = 1024}},
                {.lane = 3, .relative_time = 0.25, .memory = std::nullopt}},
      .unaligned = {{.layer = "fc1", .op = "linear", .extents = "n is 10"}},
      .products = 3};
}

AdvisedReport advised(const Report& report) {
  return {report, {paragraph("Nothing needs doing.")}, {paragraph("All layers were scored.")}};
}

}  // namespace lockstep::testing

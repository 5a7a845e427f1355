// Texts that are read without files.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "analysis/check/rules.h"
#include "emulation/accumulator/accumulator.h"
#include "emulation/format/block_format.h"
#include "emulation/format/format.h"
#include "emulation/format/rounding.h"
#include "reports/writers/csv_writer.h"
#include "reports/writers/html_text.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/execute/engines.h"
#include "src/graph/autodiff.h"
#include "src/graph/json.h"
#include "src/graph/site.h"
#include "src/lower/lower.h"
#include "src/models/model.h"
#include "src/policy/find_policy.h"
#include "src/record/capture/verification.h"
#include "src/record/run/options_json.h"
#include "src/train/lane/lane_name.h"
#include "src/update/optimizers.h"
#include "src/update/parameter_groups.h"
#include "src/update/schedules.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/target_functions.h"
#include "tests/record/capture/seed_graphs.h"

namespace lockstep::fuzz {
namespace {

// A small network with most kinds of ops, and its sites.
struct Network {
  Graph step;
  SiteTable sites;
};
const Network& network() {
  static const Network made = [] {
    const Graph step = differentiate(testing::seed_graphs()[0]);
    return Network{step, make_sites(step, /*states=*/1)};
  }();
  return made;
}

template <typename Rows>
Seeds names_of(const Rows& rows) {
  Seeds names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

}  // namespace

Seeds policy_seeds() {
  Seeds seeds;
  for (const Policy& preset : presets()) seeds.push_back(preset.text);
  seeds.push_back(
      "extends = \"torch-autocast-fp16\"\nname = \"mine\"\nhelp = \"a help\"\n[[rule]]\nlayer = "
      "\"fc*\"\nrole = \"weight\"\nformat = \"e4m3\"\nrounding = "
      "\"stochastic\"\n[loss_scale]\nkind "
      "= \"dynamic\"\ninit = 65536.0\n[sums]\naccumulator = \"fp32\"\n");
  return seeds;
}

void read_policy_text(std::string_view input, const Place&) {
  const Policy policy = parse_policy(input, "fuzz.toml");
  check_text(policy.name, "the policy's name");
  check_text(policy.label(), "the policy's label");
  for (const std::string& note : policy.notes) check_text(note, "a note of the policy");
  lower(network().step, network().sites, policy);
}

Seeds lane_seeds() {
  Seeds seeds = {"fp32",         "fp64",          "twin",       "twin2",
                 "tf32@hopper",  "pure-fp16@cpu", "tf32@cuda",  "torch-autocast-fp16:2.12@ampere",
                 "apex-o1:1",    "no/such.toml",  "a.toml@cpu", "mxfp8@blackwell",
                 "fp32@software"};
  for (const Policy& preset : presets()) seeds.push_back(preset.name);
  return seeds;
}

void read_lane(std::string_view input, const Place&) {
  const std::string name = parse_lane_name(input).policy;
  // Files are the policy target's; a name with a slash may be a device.
  if (name.ends_with(".toml")) {
    const std::string text = "extends = \"tf32\"\n";
    describe_lane(input, &text);
    return;
  }
  describe_lane(input);
}

Seeds format_seeds() {
  Seeds seeds = names_of(formats());
  for (const Seeds& more : {names_of(block_formats()), names_of(accumulators()),
                            Seeds{"e5m10", "e8m7+sat", "e3m4-sub", "e11m52", "nearest_even",
                                  "stochastic", "hopper_fp16+early", "e2m1:16"}}) {
    seeds.insert(seeds.end(), more.begin(), more.end());
  }
  return seeds;
}

void read_format(std::string_view input, const Place&) {
  std::string refusal;
  bool is_known = false;
  const auto attempt = [&](const auto& find) {
    try {
      find(input);
      is_known = true;
    } catch (const InputError& error) {
      check_text(error.what(), "message");
      if (refusal.empty()) refusal = error.what();
    }
  };
  attempt([](std::string_view name) { find_format(name); });
  attempt([](std::string_view name) { find_block_format(name); });
  attempt([](std::string_view name) { find_accumulator(name); });
  attempt([](std::string_view name) { find_engine(name); });
  if (!is_known) throw InputError(refusal);
}

Seeds hyper_seeds() {
  return {"lr=0.1,nesterov=1", "beta1=0.9,beta2=0.999,eps=1e-8", "momentum=true", "lr=inf",
          "weight_decay=0x1p-3"};
}
void read_hyper(std::string_view input, const Place&) {
  const HyperValues values = parse_hyper_values("--optimizer-args", input);
  const std::string text = hyper_values_text(values);
  if (text.find("nan") != std::string::npos) return;  // not equal to itself
  if (parse_hyper_values("again", text) != values) throw Finding("other numbers from " + text);
}

Seeds schedule_seeds() {
  Seeds seeds = names_of(schedules());
  seeds.insert(seeds.end(), {"cosine:steps=1000,warmup=100", "step:every=30,factor=0.1",
                             "linear:warmup=3,warmup_factor=0.5"});
  return seeds;
}
void read_schedule(std::string_view input, const Place&) {
  const HyperChoice schedule = parse_schedule(input);
  check_schedule(schedule);
  for (const int64_t step : {0, 1, 99}) scheduled_lr(schedule, 0.1, step, 100);
}

Seeds group_seeds() {
  return {"fc*:optimizer=adamw,lr=1e-3", "*.weight:lr=0.1", "layer?.0:momentum=0.5,nesterov=1",
          "head:optimizer=lion"};
}
void read_group(std::string_view input, const Place&) {
  const ParameterGroup group = parse_group(input, {"sgd", {{"lr", 0.1}}});
  optimizer_groups({"sgd", {}}, {group});
  check_groups(network().step, {"sgd", {}}, {group});
}

Seeds rules_seeds() {
  return {
      "version = 1\nalpha = 0.001\nrequired = [\"to_zero\", \"loss_gap\"]\n\n[[limit]]\nmetric = "
      "\"to_zero\"\nlayer = \"decoder.*\"\nrole = \"grad_*\"\nmax = 0.01\n\n[[limit]]\nmetric = "
      "\"*_loss\"\nfactor = 2\n\n[[ignore]]\nmetric = \"first_rounding\"\nlane = "
      "\"pure-fp16\"\nlayer = \"head\"\nreason = \"FP16 logits\"\nexpires = 2027-01-31\n"};
}
void read_rules(std::string_view input, const Place&) {
  const CheckRules rules = rules_from_toml(std::string(input), "rules.toml");
  for (const IgnoreRule& rule : rules.ignores) {
    check_text(rule.reason, "a reason");
    check_text(rule.pattern.text(), "a pattern");
  }
}

Seeds graph_seeds() {
  Seeds seeds;
  for (const Graph& graph : testing::seed_graphs()) seeds.push_back(to_json(graph));
  return seeds;
}
void read_graph(std::string_view input, const Place&) {
  const Graph graph = graph_from_json(input);
  const Graph again = graph_from_json(to_json(graph));
  if (to_json(again) != to_json(graph)) throw Finding("another graph from its own JSON");
  if (graph.loss.empty()) return;
  make_sites(differentiate(graph), /*states=*/1);
}

Seeds options_seeds() {
  RunOptions more;
  more.model = "mlp";
  more.sizes = {{"hidden1", 2}};
  more.lanes = {"fp32", "pure-fp16@hopper", "a.toml"};
  more.groups = {{"fc*", {"adamw", {{"lr", 0.5}}}}};
  more.freeze = {"fc1"};
  more.batch_norm_eps = 1e-5;
  more.schedule = {"cosine", {{"warmup", 2}}};
  more.mode = LaneMode::kSynced;
  more.captured_order = {2, 0, 1};
  more.seeds = 3;
  return {options_to_json({}), options_to_json(more)};
}
// Its readers turn every exception into a message of theirs, so any is a refusal here.
void read_options(std::string_view input, const Place&) {
  try {
    const RunOptions options = options_from_json(input);
    options_from_json(options_to_json(options));
    option_differences(options, {});
  } catch (const Finding&) {
    throw;
  } catch (const std::exception&) {
    throw InputError("no options");
  }
}

Seeds verification_seeds() {
  Verification v;
  v.sha256 = "00ff";
  v.lockstep_version = "0.1.0";
  v.created_utc = "2026-01-01T00:00:00Z";
  v.passed = true;
  v.gates = {{"V0", "", "PASS", "figure", {{"tensors", 3}, {"by_floor", 1}}},
             {"V1", "layer", "FAIL", "1e-3", {}}};
  return {to_json(v)};
}
void read_verification_text(std::string_view input, const Place&) {
  const auto verification = verification_from_json(input, "00ff");
  if (!verification) throw InputError("not a result");
  check_text(verification->summary(), "the summary");
}

Seeds escape_seeds() {
  return {"layer1.conv", "a <b> \"c\" & 'd'", "=1+1", "\x1b[31m", "x\ny,z", "caf\xc3\xa9"};
}
void check_escapes(std::string_view input, const Place&) {
  const std::string text(input), inert = printable(input);
  check_text(inert, "printable");
  if (printable(inert) != inert) throw Finding("printable changes what it printed");
  for (const size_t most : {0, 1, 7, 80}) check_text(printable(input, most), "printable, cut");
  const std::string html = html_text(input);
  check_text(html, "HTML");
  if (html.find_first_of("<>\"'") != std::string::npos) throw Finding("HTML with markup: " + html);
  std::vector<bool> explained;
  check_text(html_prose(input, explained), "HTML prose");
  const std::vector<std::vector<std::string>> rows = {{text, text}, {text, text}};
  const std::string csv = csv_text(rows);
  const bool is_formula = input.size() > 1 && (input[0] == '=' || input[0] == '@');
  if (is_formula && csv.starts_with(input[0])) throw Finding("a formula in CSV: " + csv);
  const std::string name = csv_file_name(input);
  if (name.find('/') != std::string::npos) throw Finding("a folder in a file's name: " + name);
  check_text(did_you_mean(printable(input), {"fp16", "fp32"}), "a hint");
  glob_match(input, "layer1.conv");
  glob_match("*a*a*a*b", input);
}

}  // namespace lockstep::fuzz

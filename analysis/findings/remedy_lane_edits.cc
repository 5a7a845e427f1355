// Edits of the lane as a whole: loss scale, scales of factors, optimizer, formats; and of the run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/findings/finding_context.h"
#include "analysis/findings/remedy_edits.h"
#include "analysis/findings/remedy_toml.h"
#include "src/graph/rewrite/rewrite.h"
#include "src/policy/loss_scale.h"

namespace lockstep {
namespace {

constexpr std::string_view kDynamicScale = "[loss_scale]\nkind = \"torch-dynamic\"\n";
constexpr std::string_view kNoScale = "[loss_scale]\nkind = \"none\"\n";

bool has_dynamic_scale(const Policy& policy) {
  return find_loss_scaler(policy.loss_scale.kind).knows("growth_interval");
}

std::string static_scale(double scale) {
  return toml_text(
             toml::table{{"loss_scale", toml::table{{"init_scale", scale}, {"kind", "static"}}}}) +
         "\n";
}

RemedyEdit static_edit(int exponent) {
  return {fmt::format("a static loss scale of 2^{}", exponent),
          static_scale(std::ldexp(1.0, exponent)),
          fmt::format("torch.amp.GradScaler(\"cuda\", init_scale=2.0**{}, growth_interval=2**31-1)",
                      exponent)};
}

// The site's format, or FP16 where that is not known.
const Format& format_at(const EditContext& c) {
  const std::string& name = c.found.finding.format;
  return find_format(name.empty() ? "fp16" : name);
}

// FP16: 16 bits, with a smaller range than BF16.
bool is_half(const Format& format) {
  return format.emax < find_format("bf16").emax && format.precision > find_format("bf16").precision;
}
std::string replaced(std::string_view key, const Format* format) {
  return format != nullptr && is_half(*format) ? fmt::format("{} = \"bf16\"\n", key) : "";
}
std::string table_of(std::string_view name, const std::string& keys) {
  return keys.empty() ? "" : fmt::format("[{}]\n{}", name, keys);
}

}  // namespace

std::vector<RemedyEdit> bf16_for_fp16(const EditContext& c) {
  const Policy& p = c.policy;
  std::string toml =
      table_of("storage", replaced("weight", p.weight) + replaced("buffer", p.buffer) +
                              replaced("input", p.input)) +
      table_of("model", replaced("input", p.model_input) + replaced("output", p.model_output)) +
      table_of("autocast", replaced("format", p.low)) +
      table_of("optimizer", replaced("arithmetic", p.optimizer_arithmetic) +
                                replaced("state", p.optimizer_state));
  if (toml.empty()) return {};
  return {{"bf16 in place of fp16, without a loss scale", toml + std::string(kNoScale),
           "dtype=torch.bfloat16, no GradScaler"}};
}

std::vector<RemedyEdit> weights_as_in_autocast(const EditContext& c) {
  if (c.policy.weight->is_fp32()) return {};
  std::string toml = "[storage]\nweight = \"fp32\"\n";
  if (c.policy.master_weights) toml += "[optimizer]\nmaster_weights = false\n";
  if (c.policy.low == nullptr) {
    toml += fmt::format("[autocast]\nformat = \"{}\"\n", c.policy.weight->name);
  }
  return {{"weights in fp32, cast for each op as autocast does", toml,
           "torch.autocast instead of a model cast to 16 bits"}};
}

std::vector<RemedyEdit> a_loss_scale(const EditContext& c) {
  if (has_dynamic_scale(c.policy) && c.policy.loss_scale.kind == kGradScaler) return {};
  return {{"a dynamic loss scale (GradScaler)", std::string(kDynamicScale),
           "scaler = torch.amp.GradScaler(\"cuda\"); scaler.scale(loss).backward(); "
           "scaler.step(optimizer); scaler.update()"}};
}

std::vector<RemedyEdit> fitting_loss_scale(const EditContext& c) {
  const double scale = c.found.finding.fitting_scale;
  if (!(std::isfinite(scale) && scale > 0)) return {};
  return {static_edit(std::ilogb(scale))};
}

std::vector<RemedyEdit> larger_loss_scale(const EditContext& c) {
  std::vector<RemedyEdit> edits = a_loss_scale(c);
  const double now = std::max(c.policy.loss_scale.init_scale, 1.0);
  for (const int octaves : {6, 10, 14, 18}) edits.push_back(static_edit(std::ilogb(now) + octaves));
  return edits;
}

std::vector<RemedyEdit> lower_loss_scale(const EditContext& c) {
  const Finding& f = c.found.finding;
  std::vector<RemedyEdit> edits;
  const double now = f.scale > 0 ? f.scale : 1;
  const bool is_known = std::isfinite(f.value) && std::isfinite(f.limit) && f.value > f.limit;
  const int over = is_known ? std::ilogb(f.value / f.limit) + 2 : 4;
  if (!has_dynamic_scale(c.policy)) edits = a_loss_scale(c);
  for (const int octaves : {over, over + 4}) {
    edits.push_back(static_edit(std::ilogb(now) - octaves));
  }
  return edits;
}

std::vector<RemedyEdit> layer_loss_scale(const EditContext& c) {
  if (c.found.finding.site < 0) return {};
  const std::string& layer = c.found.site().layer;
  if (layer.empty() || layer.find_first_of("*?") != std::string::npos) return {};
  const bool too_large = c.found.finding.kind == FindingKind::kOverflow ||
                         c.found.finding.kind == FindingKind::kScaleCollapse ||
                         c.found.finding.kind == FindingKind::kScaleFloor;
  std::vector<RemedyEdit> edits;
  for (const int octaves : {8, 16, 24}) {
    const int k = too_large ? -octaves : octaves;
    edits.push_back({fmt::format("gradients inside {} times 2^{}", layer, k),
                     rule_text({{"layer", layer}}, std::ldexp(1.0, k))});
  }
  return edits;
}

std::vector<RemedyEdit> clip_after_unscale(const EditContext& c) {
  if (!c.policy.loss_scale_use.clip_before_unscale) return {};
  return {{"gradients unscaled before they are clipped", "[loss_scale]\nclip = \"after_unscale\"\n",
           "scaler.unscale_(optimizer) before clip_grad_norm_"}};
}

std::vector<RemedyEdit> scale_per_tensor(const EditContext& c) {
  if (c.policy.scaling.kind == ScalingKind::kNone ||
      c.policy.scaling.kind == ScalingKind::kCurrent) {
    return {};
  }
  const FactorScaling& s = c.policy.scaling;
  return {{"factors scaled by their own largest magnitude",
           fmt::format("[scaling]\nkind = \"current\"\noperand = \"{}\"\ngrad_operand = \"{}\"\n",
                       s.activation.name(), s.gradient.name()),
           "transformer_engine.common.recipe.Float8CurrentScaling()"}};
}

std::vector<RemedyEdit> shorter_history(const EditContext& c) {
  if (c.policy.scaling.kind != ScalingKind::kDelayed) return {};
  return {{"the largest magnitude of the last step alone",
           "[scaling]\namax_compute = \"most_recent\"\n",
           "DelayedScaling(amax_compute_algo=\"most_recent\")"},
          {"a history of one step", "[scaling]\namax_history = 1\n",
           "DelayedScaling(amax_history_len=1)"}};
}

std::vector<RemedyEdit> state_in_fp32(const EditContext& c) {
  std::vector<RemedyEdit> edits;
  if (!c.policy.optimizer_state->is_fp32()) {
    edits.push_back({"optimizer state in fp32", "[optimizer]\nstate = \"fp32\"\n"});
  }
  edits.push_back({"optimizer state and arithmetic in fp32",
                   "[optimizer]\narithmetic = \"fp32\"\nstate = \"fp32\"\nsteps = \"elementary\"\n",
                   "an optimizer on FP32 copies of the weights"});
  return edits;
}

std::vector<RemedyEdit> fp32_masters(const EditContext& c) {
  if (c.policy.weight->is_fp32() || c.policy.master_weights) return {};
  return {{"fp32 master weights, updated in fp32",
           "[optimizer]\nmaster_weights = true\narithmetic = \"fp32\"\nstate = \"fp32\"\nsteps = "
           "\"elementary\"\n",
           "an optimizer on FP32 copies of the weights"}};
}

std::vector<RemedyEdit> other_update_rounding(const EditContext&) {
  return {{"Kahan summation of the updates", "[optimizer]\nupdate_rounding = \"kahan\"\n"},
          {"updates rounded stochastically", "[optimizer]\nupdate_rounding = \"stochastic\"\n"}};
}

std::vector<RemedyEdit> larger_eps(const EditContext& c) {
  const Finding& f = c.found.finding;
  const Format& format = format_at(c);
  const double least = std::ldexp(1.0, format.emin + 1);  // twice the smallest normal number
  const double eps = std::max(least, 1e-8);
  std::vector<RemedyEdit> edits;
  const auto is_state = [&](int32_t site) {
    return site >= 0 &&
           c.found.sites.sites[static_cast<size_t>(site)].role == Role::kOptimizerState;
  };
  if (is_state(f.cause) || is_state(f.site)) {
    edits.push_back({fmt::format("the optimizer's eps = {:.0e}", eps),
                     "",
                     fmt::format("eps={:.0e} of the optimizer", eps),
                     {},
                     {{"eps", eps}}});
    return edits;
  }
  if (f.site < 0) return edits;
  constexpr int kDepth = 3;  // x / (sqrt(v) + eps): the eps is at most so far before
  for (const NearRewrite& near : rewrites_near(c.step, c.found.site().node, kDepth)) {
    if (near.node->is_backward()) continue;
    if (near.row->takes_number && near.row->number(*near.node) >= least) continue;
    const std::string text = near.text(least);
    edits.push_back({near.row->takes_number
                         ? fmt::format("eps = {:.1e} in {} ({})", least,
                                       layer_of(c.step, *near.node), near.node->source_line)
                         : fmt::format("{} ({})", near.row->help, near.node->source_line),
                     "",
                     text,
                     {text}});
  }
  return edits;
}

std::vector<RemedyEdit> clip_gradients(const EditContext&) {
  return {{"gradients clipped to norm 1",
           "",
           "torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
           {},
           {{"clip_norm", 1.0}}}};
}

std::vector<RemedyEdit> smaller_values(const EditContext& c) {
  std::vector<RemedyEdit> edits;
  if (c.found.finding.site < 0) return edits;
  for (const NearRewrite& after : rewrites_after(c.step, c.found.site().value)) {
    if (after.row->takes_number) continue;
    const std::string text = after.text({});
    edits.push_back(
        {fmt::format("{} ({})", after.row->help, after.node->source_line), "", text, {text}});
  }
  return edits;
}

}  // namespace lockstep

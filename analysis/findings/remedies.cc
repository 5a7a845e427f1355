// The rows. Those that reach further than their finding (told = false) come last.
#include "analysis/findings/remedies.h"

#include <fmt/format.h>

#include <cmath>

#include "analysis/findings/nonfinite.h"
#include "analysis/findings/remedy_edits.h"
#include "analysis/findings/swamped_sums.h"
#include "emulation/format/format.h"
#include "src/graph/op.h"
#include "src/graph/op_text.h"

namespace lockstep {
namespace {

constexpr bool kNotTold = false;

// Tried where nothing smaller helps.
std::vector<Remedy> with_wider(std::vector<Remedy> rows) {
  rows.push_back({"the layer in fp32 or bf16", layer_in_fp32_or_bf16, kNotTold});
  rows.push_back({"weights in fp32, cast for each op", weights_as_in_autocast, kNotTold});
  rows.push_back({"bf16 in place of fp16", bf16_for_fp16, kNotTold});
  return rows;
}

bool is_scaled(const FindingContext& c) {
  return c.finding.backward && c.has_scaler && c.finding.scale > 1;
}

const Site& site_at(const FindingContext& c, int32_t id) {
  return c.sites.sites[static_cast<size_t>(id)];
}
const Site& cause_of(const FindingContext& c) {
  return site_at(c, c.finding.cause);
}

// "input batch[0]", if these are its values: as stored, or through casts and views; else "".
std::string input_at(const FindingContext& c, int32_t id) {
  while (id >= 0) {
    const Site& site = site_at(c, id);
    if (site.role == Role::kInput) {
      if (is_storage(site)) return stored_name(site);
      const auto stored = c.sites.storage_sites();
      const auto found = stored.find(site.value);
      return found == stored.end() ? "" : stored_name(site_at(c, found->second));
    }
    const bool is_result = is_in_graph(site) && site.point == Point::kOutput;
    const OpElements* op = is_result ? &find_op(site.op).elements : nullptr;
    const bool is_fed =
        site.point == Point::kOperand || (op != nullptr && (op->copies || op->is_view));
    if (!is_fed || is_backward(site) || site.feeds.size() != 1) return "";
    id = site.feeds.front();
  }
  return "";
}

// A batch that the format cannot hold has a remedy before the network: `rows` come after it, and a
// report does not suggest them.
std::vector<Remedy> for_input(const FindingContext& c, int32_t id, std::vector<Remedy> rows) {
  const std::string input = input_at(c, id);
  if (input.empty()) return rows;
  for (Remedy& row : rows) row.told = false;
  const std::string format = c.finding.format.empty() ? "16 bits" : c.finding.format;
  rows.insert(
      rows.begin(),
      {fmt::format("normalise or shift {} in fp32, before it is rounded to {}", input, format)});
  return rows;
}

}  // namespace

std::vector<Remedy> overflow_remedies(const FindingContext& c) {
  if (is_scaled(c)) {
    return with_wider({{"a lower or dynamic loss scale", lower_loss_scale},
                       {"this layer's gradient in fp32 or bf16", layer_in_fp32_or_bf16},
                       {"a lower loss scale inside the layer", layer_loss_scale, kNotTold}});
  }
  if (c.finding.backward) {
    return with_wider({{"this layer's gradient in fp32 or bf16", layer_in_fp32_or_bf16},
                       {"a dynamic loss scale", lower_loss_scale, kNotTold}});
  }
  return for_input(c, c.finding.site,
                   with_wider({{"this op in fp32 or bf16", op_in_fp32_or_bf16},
                               {"smaller values before it", smaller_values},
                               {"what it reads kept in fp32", stored_in_fp32_or_bf16, kNotTold}}));
}

std::vector<Remedy> storage_remedies(const FindingContext& c) {
  return for_input(c, c.finding.site,
                   with_wider({{fmt::format("keep {} in fp32 or bf16", stored_name(c.site())),
                                stored_in_fp32_or_bf16},
                               {"rescale it"}}));
}

std::vector<Remedy> sum_remedies(const FindingContext& c) {
  if (c.finding.site < 0) {
    return {{"clip gradients that are in fp32 (master weights)", fp32_masters},
            {"unscale before clipping", clip_after_unscale},
            {"a smaller loss, such as its mean"},
            {"weights in fp32, cast for each op", weights_as_in_autocast, kNotTold}};
  }
  if (c.finding.kind == FindingKind::kSumOverflow && !c.finding.text.empty()) {
    return with_wider({{"gradients added up in fp32", weights_as_in_autocast},
                       {"the loss divided by the number of micro-batches"},
                       {"a lower loss scale", lower_loss_scale, kNotTold}});
  }
  std::vector<Remedy> rows = {{"sums in fp32", sums_in_fp32}};
  if (is_scaled(c)) rows.push_back({"a lower loss scale", lower_loss_scale});
  rows.push_back({"this op in fp32 or bf16", op_in_fp32_or_bf16, kNotTold});
  return with_wider(std::move(rows));
}

std::vector<Remedy> invalid_remedies(const FindingContext& c) {
  if (c.of_reference) return {{"an eps or a mask that keeps the operand off the pole"}};
  if (c.finding.cause < 0) {
    return with_wider({{"this op and what it reads in fp32", operands_in_fp32},
                       {"a larger eps, or the loss from logits", larger_eps, kNotTold}});
  }
  if (cause_of(c).role == Role::kOptimizerState) {
    return with_wider({{"optimizer state in fp32", state_in_fp32},
                       {"a larger eps", larger_eps},
                       {"fp32 master weights", fp32_masters, kNotTold}});
  }
  if (is_storage(cause_of(c))) {
    return for_input(c, c.finding.cause,
                     with_wider({{fmt::format("keep {} in fp32", stored_name(cause_of(c))),
                                  stored_in_fp32_or_bf16},
                                 {"a larger eps", larger_eps},
                                 {"this op in fp32", op_in_fp32, kNotTold}}));
  }
  if (c.finding.rounded >= 0) {  // what was rounded, not what met the pole
    return with_wider(
        {{fmt::format("{} and what it reads in fp32", cause_of(c).op), operands_in_fp32},
         {"a formula without the difference"},
         {"a larger eps", larger_eps, kNotTold}});
  }
  return with_wider({{"this op in fp32", op_in_fp32}, {"a larger eps", larger_eps}});
}

std::vector<Remedy> state_overflow_remedies(const FindingContext&) {
  return {{"optimizer state in fp32", state_in_fp32},
          {"clip the gradients", clip_gradients},
          {"fp32 master weights", fp32_masters, kNotTold},
          {"bf16 in place of fp16", bf16_for_fp16, kNotTold}};
}
std::vector<Remedy> scaled_clip_remedies(const FindingContext&) {
  return {{"scaler.unscale_(optimizer) before clip_grad_norm_", clip_after_unscale}};
}
std::vector<Remedy> state_remedies(const FindingContext&) {
  return {{"optimizer state in fp32", state_in_fp32},
          {"a larger eps", larger_eps},
          {"fp32 master weights", fp32_masters, kNotTold},
          {"bf16 in place of fp16", bf16_for_fp16, kNotTold}};
}

std::vector<Remedy> no_scaler_remedies(const FindingContext& c) {
  std::vector<Remedy> rows = {{"a loss scale (GradScaler)", a_loss_scale}};
  if (std::isfinite(c.finding.fitting_scale)) {
    rows.push_back({fmt::format("a static loss scale of 2^{}", std::ilogb(c.finding.fitting_scale)),
                    fitting_loss_scale});
  }
  rows.push_back({"bf16", bf16_for_fp16});
  rows.push_back({"a larger loss scale inside the layer", layer_loss_scale, kNotTold});
  rows.push_back({"this layer in fp32", layer_in_fp32, kNotTold});
  rows.push_back({"fp32 master weights", fp32_masters, kNotTold});
  return rows;
}

std::vector<Remedy> gradient_remedies(const FindingContext& c) {
  if (c.finding.outlier_step >= 0) {
    return with_wider({{"a shorter history of the scale", shorter_history},
                       {"clip that batch"},
                       {"a scale per tensor", scale_per_tensor, kNotTold}});
  }
  if (c.finding.cause >= 0) {
    return with_wider({{"this op in fp32", op_in_fp32}, {"smaller values before it"}});
  }
  if (!c.finding.backward) {
    return for_input(c, c.finding.site,
                     with_wider({{"this op in fp32 or bf16", op_in_fp32_or_bf16},
                                 {"a scale per tensor", scale_per_tensor, kNotTold}}));
  }
  const Remedy inside = {"a larger loss scale inside the layer", layer_loss_scale, kNotTold};
  const Remedy per_tensor = {"a scale per tensor", scale_per_tensor, kNotTold};
  if (c.has_scaler && c.finding.scale > 1) {
    return with_wider({{"a larger loss scale", larger_loss_scale},
                       {"this layer in fp32 or bf16", layer_in_fp32_or_bf16},
                       inside,
                       per_tensor});
  }
  const std::string& format = c.finding.format;
  const int of_fp32 = find_format("fp32").emin;
  const bool is_wide = !format.empty() && find_format(format).emin <= of_fp32;  // as bf16 is
  return with_wider({{"a loss scale (GradScaler)", larger_loss_scale},
                     {"bf16", bf16_for_fp16, /*told=*/!is_wide},
                     {"this layer in fp32", layer_in_fp32, /*told=*/is_wide},
                     inside,
                     per_tensor});
}

std::vector<Remedy> collapse_remedies(const FindingContext&) {
  return with_wider({{"a lower or dynamic loss scale", lower_loss_scale},
                     {"the named layer's gradient in fp32 or bf16", layer_in_fp32_or_bf16},
                     {"gradient clipping inside the model"},
                     {"a lower loss scale inside the layer", layer_loss_scale, kNotTold}});
}
std::vector<Remedy> saturated_remedies(const FindingContext& c) {
  return for_input(
      c, c.finding.site,
      with_wider({{"a scale per tensor", scale_per_tensor},
                  {"this layer in bf16", layer_in_fp32_or_bf16},
                  {"a shorter history of the scale", shorter_history, kNotTold},
                  {"what is cut off in bf16 or fp32", values_in_bf16_or_fp32, kNotTold}}));
}
// What was rounded comes before the op that showed it.
std::vector<Remedy> cancellation_remedies(const FindingContext& c) {
  const Site& rounded = site_at(c, c.finding.rounded);
  const std::string what =
      is_storage(rounded) ? stored_name(rounded) : op_text(rounded.layer, rounded.op);
  std::vector<Remedy> rows = {
      {fmt::format("{} in fp32, alone or with the ops up to this one", what), rounded_in_fp32},
      {"a formula without the difference"},
      {"this op and what it reads in fp32", operands_in_fp32, kNotTold}};
  return for_input(c, c.finding.rounded, with_wider(std::move(rows)));
}
std::vector<Remedy> updates_remedies(const FindingContext&) {
  return {{"fp32 master weights", fp32_masters},
          {"stochastic rounding or Kahan summation", other_update_rounding},
          {"weights in fp32, cast for each op", weights_as_in_autocast, kNotTold}};
}

std::vector<Remedy> swamping_remedies(const FindingContext& c) {
  if (c.finding.cause >= 0) {
    return with_wider({{"this sum in fp32", op_in_fp32}, {"a smaller other operand"}});
  }
  if (c.site().point == Point::kAccumulator || c.finding.is_other_sum) return sum_remedies(c);
  if (!c.finding.backward) {
    return with_wider({{"this buffer in fp32", stored_in_fp32_or_bf16}});
  }
  return with_wider(
      {{"gradients added up in fp32", weights_as_in_autocast}, {"fewer micro-batches"}});
}
std::vector<Remedy> constant_remedies(const FindingContext&) {
  return {{"optimizer state and arithmetic in fp32", state_in_fp32},
          {"fp32 master weights", fp32_masters, kNotTold}};
}
std::vector<Remedy> flipped_remedies(const FindingContext&) {
  return with_wider({{"what it decides by in fp32", deciders_in_fp32},
                     {"replay --decisions own, to see whether the loss changes"}});
}
std::vector<Remedy> drift_remedies(const FindingContext&) {
  return with_wider({{"this op in fp32", op_in_fp32}});
}
// The site is that of the rounding.
std::vector<Remedy> wrong_loss_remedies(const FindingContext& c) {
  if (c.finding.site < 0 || !is_storage(c.site())) {
    return for_input(c, c.finding.site, drift_remedies(c));
  }
  return for_input(c, c.finding.site,
                   with_wider({{fmt::format("keep {} in fp32", stored_name(c.site())),
                                stored_in_fp32_or_bf16}}));
}

}  // namespace lockstep

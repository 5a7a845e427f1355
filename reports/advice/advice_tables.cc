// See advice_tables.h.
#include "reports/advice/advice_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/findings/finding_kinds.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

Cell gap_cell(double gap) {
  if (!std::isfinite(gap)) return "-";
  return {fmt::format("{}{}", gap < 0 ? "" : "+", short_number(gap)), gap};
}

Cell or_dash(double value) {
  if (value == 0 || !std::isfinite(value)) return "-";
  return {two_digits(value), value};
}

Cell time_cell(double relative) {
  return {fmt::format("{:.2f}", relative), relative};
}

// "plain fp16"; "fp8 on fp16"; "fp16, weights-kahan".
std::string candidate_name(const Candidate& candidate) {
  std::string name = (candidate.is_preset() ? "plain " : "") + candidate.format;
  if (candidate.tf32) name += ", tf32";
  if (!candidate.narrow.empty()) {
    name = candidate.memory.empty() ? candidate.narrow + " on " + name : candidate.narrow;
  }
  for (const std::string& choice : candidate.memory) name += ", " + choice;
  return name;
}

std::string kept_text(const Candidate& candidate) {
  std::string text = candidate.fp32.empty() ? "" : layer_names(candidate.fp32);
  if (!candidate.not_narrow.empty()) {
    text += fmt::format("{}{} in {}", text.empty() ? "" : "; ", layer_names(candidate.not_narrow),
                        candidate.format);
  }
  return text.empty() ? "-" : text;
}

std::string layer_or_dash(const std::string& layer) {
  return layer.empty() ? "-" : layer;
}

void add_measured_columns(TableBlock& table) {
  for (const char* title : {"loss error", "dW error", "/ noise", "gap alone"}) {
    table.columns.push_back({title});
  }
}

void add_measured_cells(const std::optional<MeasuredSensitivity>& measured,
                        std::vector<Cell>& cells) {
  for (const auto number : {&MeasuredSensitivity::loss_error, &MeasuredSensitivity::gradient_error,
                            &MeasuredSensitivity::error_to_noise}) {
    cells.push_back(measured ? or_dash((*measured).*number) : Cell("-"));
  }
  cells.push_back(measured ? gap_cell(measured->accumulated) : Cell("-"));
}

}  // namespace

std::string layer_names(const std::vector<KeptLayer>& layers) {
  std::vector<std::string> names;
  for (const KeptLayer& layer : layers) names.push_back(layer.layer);
  return few_names(names);
}

std::string verdict_text(const Trial& trial) {
  if (trial.passes()) return "trains as fp32";
  const Verdict verdict = trial.judgement.verdict;
  return verdict == Verdict::kFine ? "still skips steps" : std::string(to_string(verdict));
}

TableBlock tried_table(const Advice& advice) {
  TableBlock table;
  table.columns = {{"candidate", Align::kLeft},
                   {"kept higher", Align::kLeft},
                   {"loss scale"},
                   {"loss"},
                   {"gap"},
                   {"skips"},
                   {"time"},
                   {"verdict", Align::kLeft}};
  for (const Trial& trial : advice.tried) {
    const ScaleChoice& scale = trial.candidate.scale;
    const bool is_chosen = advice.chosen && advice.chosen->candidate.lane == trial.candidate.lane;
    table.rows.push_back(
        {(is_chosen ? "* " : "  ") + candidate_name(trial.candidate), kept_text(trial.candidate),
         !scale.scales
             ? "-"
             : fmt::format("{}{}", scale_text(scale.start), scale.dynamic ? ", dynamic" : ""),
         number_cell(trial.judgement.tail_loss), gap_cell(trial.judgement.gap),
         fmt::format("{}", trial.skips), time_cell(trial.cost.seconds / advice.fp32_cost.seconds),
         verdict_text(trial)});
  }
  table.notes = {fmt::format(
      "loss: mean over the last steps. gap: loss minus fp32's after as many updates. time: of "
      "fp32's step on {}, an estimate.{}",
      advice.gpu->name, advice.chosen ? " *: recommended." : "")};
  return table;
}

TableBlock frontier_table(const Advice& advice) {
  TableBlock table;
  table.name = "frontier";
  table.columns = {
      {"format", Align::kLeft}, {"layers"}, {"cost"}, {"score"}, {"run", Align::kLeft}};
  for (const FrontierPoint& point : advice.frontier) {
    table.rows.push_back({point.format, fmt::format("{}", point.layers),
                          Cell(fmt::format("{:.3f}", point.cost), point.cost), or_dash(point.score),
                          point.lane.empty() ? "-"
                          : point.passes     ? "passed"
                                             : "failed"});
  }
  table.notes = {
      "layers: in the format. cost: of the frontier's largest. score: sum over the layers, in "
      "units "
      "of batch noise squared."};
  return table;
}

TableBlock role_table(const SensitivityTable& sensitivity) {
  TableBlock table;
  table.name = "roles";
  table.columns = {{"layer", Align::kLeft},
                   {"role", Align::kLeft},
                   {"format", Align::kLeft},
                   {"score"},
                   {"effect"},
                   {"range"},
                   {"dW error"},
                   {"/ noise"},
                   {"updates lost"},
                   {"terms"}};
  for (const RoleSensitivity& row : sensitivity.roles) {
    table.rows.push_back({layer_or_dash(row.layer), std::string(to_string(row.role)), row.format,
                          or_dash(row.score), or_dash(row.effect), or_dash(row.range_effect),
                          or_dash(row.gradient_error), or_dash(row.error_to_noise),
                          or_dash(row.updates_lost),
                          row.terms == 0 ? "-" : fmt::format("{}", row.terms)});
  }
  table.notes = {
      "effect, range: what lost digits and lost range do to the loss, to first order. dW error: of "
      "the weight gradient's factors, relative; / noise: over that gradient's scatter from batch "
      "to batch. terms: of the longest sum."};
  return table;
}

TableBlock measured_role_table(const SensitivityTable& sensitivity) {
  TableBlock table;
  table.name = "measured-roles";
  table.columns = {{"layer", Align::kLeft}, {"role alone", Align::kLeft}, {"format", Align::kLeft}};
  add_measured_columns(table);
  for (const RoleSensitivity& row : sensitivity.roles) {
    if (!row.measured) continue;
    table.rows.push_back({layer_or_dash(row.layer), std::string(to_string(row.role)), row.format});
    add_measured_cells(row.measured, table.rows.back());
  }
  table.notes = {"Only the layer's values of this role are in the format, all else in fp32."};
  return table;
}

TableBlock noise_table(const SensitivityTable& sensitivity) {
  TableBlock table;
  table.name = "noise";
  table.columns = {
      {"weight", Align::kLeft}, {"share of noise"}, {"measured or assumed", Align::kLeft}};
  for (const GradientNoise& row : sensitivity.noise) {
    table.rows.push_back({row.weight, Cell(two_digits(row.share), row.share),
                          row.is_measured() ? "measured" : "assumed: " + row.why_assumed});
  }
  table.notes = {
      "share of noise: how much of the energy of the weight's gradient is scatter from batch to "
      "batch."};
  return table;
}

TableBlock layer_table(const SensitivityTable& sensitivity) {
  TableBlock table;
  table.name = "layers";
  table.columns = {{"layer", Align::kLeft}, {"format", Align::kLeft}, {"score"}};
  if (sensitivity.is_measured) add_measured_columns(table);
  for (const LayerSensitivity& row : sensitivity.layers) {
    table.rows.push_back({layer_or_dash(row.layer), row.format, or_dash(row.score)});
    if (sensitivity.is_measured) add_measured_cells(row.measured, table.rows.back());
  }
  table.notes = {
      fmt::format("Batch noise of the loss: {}.", or_dash(sensitivity.batch_noise).text)};
  if (!sensitivity.is_measured) return table;
  const MeasuredSensitivity& floor = sensitivity.floor;
  table.notes.push_back(fmt::format(
      "loss error, dW error: this layer alone in the format, from the reference's weights in every "
      "step. / noise: the same over the scatter of the gradients from batch to batch. gap alone: "
      "it keeps its own weights. One ulp alone: {}, {}, {}, {}.",
      or_dash(floor.loss_error).text, or_dash(floor.gradient_error).text,
      or_dash(floor.error_to_noise).text, gap_cell(floor.accumulated).text));
  return table;
}

}  // namespace lockstep

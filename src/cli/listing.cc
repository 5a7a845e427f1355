// The topics of `lockstep list`: from table rows to cells.
#include "src/cli/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "analysis/check/metrics.h"
#include "analysis/cost/gpu_cost.h"
#include "analysis/exact/exact_rules.h"
#include "analysis/findings/finding_kinds.h"
#include "analysis/monitor/alarms.h"
#include "emulation/accumulator/accumulator.h"
#include "emulation/accumulator/accumulator_picture.h"
#include "emulation/format/block_format.h"
#include "emulation/format/format.h"
#include "emulation/format/rounding.h"
#include "emulation/format/whole_line.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/stats/tensor_stats.h"
#include "reports/advice/advice_keys.h"
#include "reports/check/check_json.h"
#include "reports/emit/emit_kinds.h"
#include "reports/monitor/monitor_page.h"
#include "reports/pair/pair_json.h"
#include "reports/run/report_json.h"
#include "reports/writers/glossary.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/data/sources.h"
#include "src/execute/engines.h"
#include "src/graph/composed_ops.h"
#include "src/graph/op.h"
#include "src/models/model.h"
#include "src/policy/find_policy.h"
#include "src/policy/loss_scale.h"
#include "src/policy/policy.h"
#include "src/train/run_option_rows.h"
#include "src/update/optimizers.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

std::string str(std::string_view text) {
  return std::string(text);
}

Listing list_formats() {
  Listing out{{"format", "bits", "p", "emin", "emax", "overflow", "subnormals", "aliases", "limits",
               "source"},
              {}};
  for (const Format& f : formats()) {
    out.rows.push_back({f.name, fmt::format("{}", f.storage_bits()), fmt::format("{}", f.precision),
                        fmt::format("{}", f.emin), fmt::format("{}", f.emax),
                        str(to_string(f.overflow)), str(to_string(f.subnormals)),
                        join(f.aliases, ", "), f.help, f.source});
  }
  return out;
}

Listing list_suffixes() {
  Listing out{{"suffix", "kind", "meaning", "source"}, {}};
  for (const FormatSuffix& s : format_suffixes()) {
    out.rows.push_back(
        {"+" + str(s.name), s.overflow ? "overflow" : "subnormals", str(s.help), str(s.source)});
  }
  return out;
}

Listing list_blocks() {
  Listing out{
      {"format", "element", "block", "scale", "bits per element", "aliases", "meaning", "source"},
      {}};
  for (const BlockFormat& f : block_formats()) {
    const bool is_e8m0 = f.scale == ScaleFormat::kE8m0;
    const std::string size =
        f.block_size == kWholeLine ? "whole line" : fmt::format("{}", f.block_size);
    out.rows.push_back({f.name, f.element->name, size,
                        is_e8m0 ? "e8m0, " + str(to_string(f.rule)) : "e4m3 and FP32",
                        fmt::format("{:.4g}", f.bits_per_element()), join(f.aliases, ", "), f.help,
                        f.source});
  }
  return out;
}

Listing list_scale_rules() {
  Listing out{{"scale rule", "meaning", "source"}, {}};
  for (const ScaleRuleInfo& r : scale_rules()) {
    out.rows.push_back({str(r.name), str(r.help), str(r.source)});
  }
  return out;
}

Listing list_roundings() {
  Listing out{{"rounding", "meaning"}, {}};
  for (const RoundingInfo& r : roundings()) out.rows.push_back({str(r.name), str(r.help)});
  return out;
}

Listing list_presets() {
  Listing out{{"preset", "aliases", "meaning", "source"}, {}};
  for (const Policy& p : presets()) {
    out.rows.push_back({p.label(), join(p.aliases, ", "), p.help, p.source});
  }
  return out;
}

Listing list_scalers() {
  Listing out{{"scaler", "checks", "meaning", "numbers", "source"}, {}};
  for (const LossScaler& s : loss_scalers()) {
    out.rows.push_back({str(s.name), str(to_string(s.check)), str(s.help), default_numbers_text(s),
                        str(s.source)});
  }
  return out;
}

Listing list_alarms() {
  Listing out{{"alarm", "meaning", "source"}, {}};
  for (const AlarmRow& row : alarm_rows()) {
    out.rows.push_back({str(row.name), str(row.help), str(row.source)});
  }
  return out;
}

Listing list_optimizers() {
  Listing out{{"optimizer", "meaning", "numbers", "source"}, {}};
  for (const Optimizer& o : optimizers()) {
    out.rows.push_back(
        {str(o.name), str(o.help), initial_values_text(o.parameters), str(o.source)});
  }
  return out;
}

Listing list_schedules() {
  Listing out{{"schedule", "learning rate of step t", "numbers", "source"}, {}};
  for (const Schedule& s : schedules()) {
    out.rows.push_back(
        {str(s.name), str(s.help), initial_values_text(s.parameters), str(s.source)});
  }
  return out;
}

// The meaning of the numbers of optimizers and schedules.
Listing list_numbers() {
  Listing out{{"of", "number", "initial", "range", "meaning"}, {}};
  const auto add = [&](std::string_view owner, std::span<const HyperParameter> parameters) {
    for (const HyperParameter& p : parameters) {
      out.rows.push_back(
          {str(owner), str(p.name), fmt::format("{}", p.initial), range_text(p), str(p.help)});
    }
  };
  for (const Optimizer& o : optimizers()) add(o.name, o.parameters);
  for (const Schedule& s : schedules()) add(s.name, s.parameters);
  return out;
}

Listing list_models() {
  Listing out{{"model", "task", "default data", "sizes", "meaning", "source"}, {}};
  for (const Model& m : models()) {
    std::vector<std::string> sizes;
    for (const ModelSize& size : m.sizes)
      sizes.push_back(fmt::format("{}={}", size.name, size.value));
    out.rows.push_back({str(m.name), str(to_string(m.task)), str(m.default_data), join(sizes, ", "),
                        str(m.help), str(m.source)});
  }
  return out;
}

Listing list_data() {
  Listing out{{"data", "argument", "tasks", "meaning"}, {}};
  for (const DataSource& d : data_sources()) {
    std::vector<std::string> tasks;
    for (const Task task : d.tasks) tasks.emplace_back(to_string(task));
    out.rows.push_back({str(d.kind), str(d.argument), join(tasks, ", "), str(d.help)});
  }
  return out;
}

std::string older_text(const RunOption& row) {
  if (row.is_required) return "";
  if (!row.older) return "the default";
  return *row.older == INT64_MAX ? "all" : fmt::format("{}", *row.older);
}

Listing list_options() {
  constexpr std::string_view kOf[] = {"all", "models", "captures"};
  constexpr std::string_view kEffect[] = {"no", "as noise does", "as another draw",
                                          "as another training", "as another experiment"};
  Listing out{{"key", "option", "of", "changes numbers", "if missing", "meaning"}, {}};
  for (const RunOption& row : run_options()) {
    if (row.key.empty()) continue;
    out.rows.push_back({str(row.key), str(row.option), str(kOf[static_cast<size_t>(row.of)]),
                        str(kEffect[static_cast<size_t>(row.effect)]), older_text(row),
                        str(row.help)});
  }
  return out;
}

// What a capture records of an op whose slope jumps: the side of the jump that each element is on,
// or the element chosen.
std::string kink_of(const OpDef& op) {
  if (op.meaning.winner_output >= 0) return "winner";
  return op.meaning.kink != nullptr ? "side" : "no";
}

Listing list_ops() {
  Listing out{{"op", "class", "sum of products", "kink", "meaning", "source"}, {}};
  for (const OpDef& op : ops()) {
    out.rows.push_back({str(op.name), str(to_string(op.cast_class)),
                        op.sums.of_products ? "yes" : "no", kink_of(op), str(op.help),
                        str(op.source)});
  }
  for (const ComposedOp& op : composed_ops()) {
    out.rows.push_back({str(op.name), str(to_string(op.cast_class)), "no", "no", str(op.help),
                        "several ops between composed_operand and composed_result"});
  }
  return out;
}

Listing list_engines() {
  Listing out{{"target", "kind", "meaning"}, {}};
  for (const Engine& e : engines()) out.rows.push_back({str(e.name), "engine", str(e.help)});
  for (const Hardware& h : hardware()) {
    out.rows.push_back(
        {str(h.name), "hardware", "the software engine with the accumulators of " + str(h.help)});
  }
  return out;
}

Listing list_kernels() {
  Listing out{{"kernels", "meaning"}, {}};
  for (const KernelSet* set : available_kernel_sets()) {
    out.rows.push_back({str(set->name), str(set->help)});
  }
  return out;
}

void add_accumulator(Listing& out, const Accumulator& a) {
  std::vector<std::string> factors;
  for (const Format* f : a.operands) factors.push_back(f->name);
  out.rows.push_back({a.name, factors.empty() ? "any" : join(factors, ", "), a.format->name,
                      a.instruction, a.help, a.evidence.text(), a.source});
  out.pictures.push_back(accumulator_picture(a));
}

const std::vector<std::string> kAccumulatorColumns = {
    "accumulator", "factors", "sum", "instruction", "meaning", "evidence", "source"};

Listing list_accumulators() {
  Listing out{kAccumulatorColumns, {}};
  for (const Accumulator& a : accumulators()) add_accumulator(out, a);
  return out;
}

// Accumulators that compute the same way share a drawing.
Listing list_pictures() {
  Listing out{{"accumulators"}, {}};
  out.draws = true;
  for (const Accumulator& a : accumulators()) {
    const std::string picture = accumulator_picture(a);
    const auto known = std::find(out.pictures.begin(), out.pictures.end(), picture);
    if (known == out.pictures.end()) {
      out.rows.push_back({a.name});
      out.pictures.push_back(picture);
    } else {
      out.rows[static_cast<size_t>(known - out.pictures.begin())][0] += ", " + a.name;
    }
  }
  return out;
}

Listing list_switches() {
  Listing out{{"switch", "question", "default", "meaning", "source"}, {}};
  for (const AccumulatorSwitch& s : accumulator_switches()) {
    out.rows.push_back(
        {str(s.name), str(s.question), s.is_default ? "yes" : "no", str(s.help), str(s.source)});
  }
  return out;
}

Listing list_statistics() {
  Listing out{{"statistic", "dataset", "meaning"}, {}};
  for (const Statistic& s : statistics()) {
    const std::string_view group = s.kind() == StatisticKind::kCount ? "counts/" : "moments/";
    out.rows.push_back({str(s.name), str(group) + str(s.name), str(s.help)});
  }
  return out;
}

std::string rate_text(double rate) {
  return rate == 0 ? "" : fmt::format("{}", rate);
}

Listing list_gpus() {
  const std::vector<std::string_view> formats = rated_formats();
  Listing out{{"gpu", "meaning"}, {}};
  out.columns.insert(out.columns.end(), formats.begin(), formats.end());
  out.columns.insert(out.columns.end(), {"GB/s", "source"});
  for (const Gpu& gpu : gpus()) {
    std::vector<std::string>& cells = out.rows.emplace_back();
    cells = {str(gpu.name), str(gpu.help)};
    for (const std::string_view format : formats) {
      cells.push_back(rate_text(peak_rate(gpu, format)));
    }
    cells.push_back(rate_text(gpu.bandwidth));
    cells.push_back(str(gpu.source));
  }
  return out;
}

std::string comparison_text(Compared comparison) {
  if (comparison == Compared::kNone) return "not";
  return comparison == Compared::kExact ? "exactly" : "within --rel-tol";
}

Listing list_quantities() {
  Listing out{{"dataset", "axes", "type", "compared", "meaning"}, {}};
  for (const Quantity& q : quantities()) {
    out.rows.push_back(
        {q.name, axes_text(q), str(to_string(q.storage())), comparison_text(q.comparison), q.help});
  }
  return out;
}

Listing list_findings() {
  Listing out{{"kind", "what it means", "decided by"}, {}};
  for (const FindingKindRow& row : finding_kinds()) {
    out.rows.push_back({str(row.name), str(row.help), str(row.rule)});
  }
  return out;
}

Listing list_emit() {
  Listing out{{"kind", "file", "what it is", "what it can say of a policy"}, {}};
  for (const EmitKind& kind : emit_kinds()) {
    out.rows.push_back(
        {str(kind.name), "NAME" + str(kind.extension), str(kind.help), str(kind.says)});
  }
  return out;
}

Listing list_words() {
  Listing out{{"word", "meaning"}, {}};
  for (const GlossaryWord& word : glossary()) {
    out.rows.push_back({join(word.forms, ", "), word.meaning});
  }
  return out;
}

Listing list_checks() {
  Listing out{{"compared", "how", "meaning"}, {}};
  for (const ExactRule& r : exact_rules()) {
    out.rows.push_back({r.name, comparison_text(r.comparison), r.help});
  }
  return out;
}

Listing list_metrics() {
  Listing out{{"metric", "unit", "worse if", "of", "floor", "with other seeds", "meaning"}, {}};
  constexpr const char* kUnits[] = {"share", "octaves", "octaves", "loss", "yes or no"};
  constexpr const char* kOf[] = {"site", "parameter", "parameter group", "lane"};
  for (const Metric& m : metrics()) {
    out.rows.push_back({str(m.name), kUnits[static_cast<size_t>(m.unit)],
                        m.zero_tolerance            ? "any"
                        : m.worse == WorseIf::kMore ? "more"
                                                    : "changed",
                        fmt::format("{}{}", kOf[static_cast<size_t>(m.of)],
                                    m.reference_only ? " (reference)" : ""),
                        fmt::format("{:.2g}", m.floor), fmt::format("{:.2g}", m.floor_of_seeds),
                        str(m.help)});
  }
  return out;
}

Listing list_keys(const JsonShape& shape, const std::vector<std::string>& elsewhere = {}) {
  Listing out{{"key", "value", "meaning"}, {}};
  for (const JsonKeyLine& line : json_key_lines(shape, elsewhere)) {
    out.rows.push_back({"`" + line.key + "`", line.value, line.meaning});
  }
  return out;
}

template <class T>
const JsonShape& keys_of() {
  return json_object(static_cast<const T*>(nullptr));
}

constexpr const char* kReportPage = "docs/report-json.md says what the keys mean.";
constexpr const char* kReportSchema = "report.schema.json";

constexpr std::array kTopics = {
    ListTopic{"formats", "number formats; any e<E>m<M> (E 2..8, M 1..23) works as well",
              list_formats},
    ListTopic{"suffixes", "what may follow a format's name, as in fp8_e4m3+saturate",
              list_suffixes},
    ListTopic{"blocks", "block formats with shared scales: NAME[+scale rule][+element suffixes]",
              list_blocks},
    ListTopic{"scale-rules", "how a block's power-of-two scale follows from its largest magnitude",
              list_scale_rules},
    ListTopic{"roundings", "rounding modes", list_roundings},
    ListTopic{"presets", "policies that ship with Lockstep", list_presets},
    ListTopic{"scalers", "loss scalers", list_scalers},
    ListTopic{"optimizers", "optimizers", list_optimizers},
    ListTopic{"schedules", "learning rates over a run", list_schedules},
    ListTopic{"numbers", "the numbers of optimizers and schedules", list_numbers},
    ListTopic{"options", "the options of a run, by their keys in run files", list_options},
    ListTopic{"models", "built-in models", list_models},
    ListTopic{"data", "where batches come from", list_data},
    ListTopic{"ops", "operations a graph may hold", list_ops},
    ListTopic{"engines", "what may follow '@' in a lane's name", list_engines},
    ListTopic{"kernels", "kernel sets this machine can run; all give equal bits", list_kernels},
    ListTopic{"accumulators", "how sums of products are formed; with a NAME, also as a drawing",
              list_accumulators},
    ListTopic{"pictures", "drawings of all accumulators", list_pictures},
    ListTopic{"switches",
              "rules of tensor cores that can be switched, after '+' in an accumulator's name",
              list_switches},
    ListTopic{"metrics", "what `lockstep check` judges a run by", list_metrics},
    ListTopic{"statistics", "what is recorded of every tensor", list_statistics},
    ListTopic{"quantities", "what is recorded of a lane: the datasets of a run file",
              list_quantities},
    ListTopic{"findings", "what can go wrong in a lane, and how it is decided", list_findings},
    ListTopic{"alarms", "what a monitor warns of while a run trains", list_alarms},
    ListTopic{"emit", "kinds of files that `--emit KIND FILE` writes", list_emit},
    ListTopic{"words", "what words mean here", list_words},
    ListTopic{"gpus", "GPUs that `recommend` estimates times for, with their peak rates",
              list_gpus},
    ListTopic{"checks", "what `lockstep check` compares", list_checks},
    ListTopic{"report-keys", "the keys of `lockstep report RUN --format json`",
              [] { return list_keys(keys_of<Report>()); },
              [] {
                return json_schema(keys_of<Report>(),
                                   {.title = "A report of Lockstep, lockstep report --format json",
                                    .description = kReportPage});
              }},
    ListTopic{
        "report-pair-keys", "the keys of `lockstep report BEFORE AFTER --format json`",
        [] {
          return list_keys(keys_of<ReportPair>(), {"report", "finding", "place"});
        },
        [] {
          return json_schema(
              keys_of<ReportPair>(),
              {.title = "Two runs next to each other, lockstep report BEFORE AFTER --format json",
               .description = std::string(kReportPage) + " Relative references are to " +
                              kReportSchema + " of the same folder.",
               .other_file = kReportSchema,
               .other_name = "report"});
        }},
    ListTopic{"monitor-keys", "the keys of `lockstep report` of a monitored run, --format json",
              [] { return list_keys(keys_of<MonitorReport>()); },
              [] {
                return json_schema(keys_of<MonitorReport>(),
                                   {.title = "A monitored run, lockstep report --format json",
                                    .description = "docs/monitor.md says what the keys mean."});
              }},
    ListTopic{"check-keys", "the keys of `lockstep check --json`",
              [] { return list_keys(keys_of<CheckResult>()); },
              [] {
                return json_schema(keys_of<CheckResult>(),
                                   {.title = "The result of a check, lockstep check --json",
                                    .description = "docs/check-json.md says what the keys mean."});
              }},
    ListTopic{"advice-keys", "the keys of `lockstep recommend --json`",
              [] { return list_keys(keys_of<Answered>()); },
              [] {
                return json_schema(keys_of<Answered>(),
                                   {.title = "The advice of Lockstep, lockstep recommend --json",
                                    .description = "docs/advice-json.md says what the keys mean."});
              }},
};

}  // namespace

std::span<const ListTopic> list_topics() {
  return kTopics;
}

Listing row_of(const Listing& listing, std::string_view name) {
  std::vector<std::string> names;
  for (size_t i = 0; i < listing.rows.size(); ++i) {
    names.push_back(listing.rows[i][0]);
    if (names.back() != name) continue;
    Listing one{listing.columns, {listing.rows[i]}};
    if (!listing.pictures.empty()) one.pictures = {listing.pictures[i]};
    one.draws = !one.pictures.empty();
    return one;
  }
  throw InputError(fmt::format("{} '{}': unknown", listing.columns[0], name),
                   did_you_mean(name, names));
}

Listing list_accumulator(std::string_view name) {
  Listing out{kAccumulatorColumns, {}};
  out.draws = true;
  add_accumulator(out, find_accumulator(name));
  return out;
}

}  // namespace lockstep

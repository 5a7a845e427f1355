// See part_advice_text.h.
#include "reports/advice/part_advice_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/writers/cells.h"
#include "reports/writers/json_text.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

std::string effect_text(const PartTotal& total) {
  if (!total.is_finite) return "not finite";
  return total.has_error ? fmt::format("{:+.2g} +- {:.2g}", total.effect, total.error())
                         : fmt::format("{:+.2g}", total.effect);
}

std::string_view choice_name(PartChoice choice) {
  constexpr std::string_view kNames[] = {"base", "except", "narrow"};
  return kNames[static_cast<size_t>(choice)];
}

std::string_view answer_name(PartAdvice::Answer answer) {
  constexpr std::string_view kNames[] = {"narrow", "base", "unclear", "none"};
  return kNames[static_cast<size_t>(answer)];
}

// "all", "2 of 3"
std::string narrow_share(const PartCandidate& one) {
  const size_t base = one.count_of(PartChoice::kBase);
  const size_t narrow = one.count_of(PartChoice::kNarrow) + one.count_of(PartChoice::kExcept);
  return base == 0 ? "all" : fmt::format("{} of {}", narrow, narrow + base);
}

// "in all parts", "in 2 of 3 parts but for a layer in 1 of them"
std::string where_text(const PartCandidate& one) {
  const size_t except = one.count_of(PartChoice::kExcept);
  return fmt::format("in {} parts{}", narrow_share(one),
                     except == 0 ? "" : fmt::format(" but for a layer in {} of them", except));
}

double base_share(const PartAdvice& advice, const PartCandidate& one) {
  return one.seconds / advice.base.seconds;
}

bool was_run(const PartCandidate& one) {
  return one.all_narrow.parts > 0;
}

TableBlock formats_table(const PartAdvice& advice) {
  TableBlock table;
  constexpr bool kOptional = true;
  table.columns = {{"format", Align::kLeft},
                   {"in all: loss"},
                   {"+-", Align::kRight, kOptional},
                   {"fits in", Align::kLeft},
                   {"layers kept"},
                   {"loss"},
                   {"+-", Align::kRight, kOptional},
                   {fmt::format("time of {}", advice.base_format)}};
  const auto effect = [](const PartTotal& total) {
    return total.is_finite ? Cell(fmt::format("{:+.2g}", total.effect), total.effect)
                           : Cell("not finite");
  };
  const auto error = [](const PartTotal& total) {
    return total.has_error ? error_cell(total.error()) : Cell("");
  };
  const auto row = [&](const std::string& name, const PartTotal& all, const PartCandidate& one) {
    auto& cells = table.rows.emplace_back(
        std::vector<Cell>{name, effect(all), error(all), one.why_not, "", "", "", ""});
    if (one.parts.empty()) return;
    if (one.why_not.empty()) cells[3] = narrow_share(one);
    const size_t kept = one.count_of(PartChoice::kExcept);
    if (kept > 0) cells[4] = count_cell(kept);
    cells[5] = effect(one.total);
    cells[6] = error(one.total);
    cells[7] = number_cell(base_share(advice, one));
  };
  row(advice.base_format, advice.base.total, advice.base);
  table.rows.back()[3] = "";
  for (const PartCandidate& one : advice.tried) {
    if (was_run(one)) row(one.format, one.all_narrow, one);
  }
  table.notes = {fmt::format(
      "loss: change of the whole model's loss against fp32, the parts' added up; +-: two standard "
      "errors over the batches, their variance counted twice (docs/parts.md). fits in: the parts "
      "in which the sum stays within the tolerance; layers kept: in {}. time: an estimate of the "
      "parts alone on {}.",
      advice.base_format, advice.gpu->name)};
  return table;
}

TableBlock parts_table(const PartAdvice& advice, const PartCandidate& one) {
  TableBlock table;
  table.columns = {{"part", Align::kLeft},
                   {"format", Align::kLeft},
                   {"layer kept", Align::kLeft},
                   {"loss"},
                   {"+-"},
                   {"dW"}};
  bool has_between = false;
  for (const PartPlan& part : one.parts) {
    PartTotal own;
    own.add(part.effect);
    has_between = has_between || part.is_between;
    table.rows.push_back(
        {part.part + (part.is_between ? " *" : ""),
         part.choice == PartChoice::kBase ? advice.base_format : one.format, part.kept,
         Cell(fmt::format("{:+.2g}", own.effect), own.effect),
         own.has_error ? error_cell(own.error()) : Cell(""),
         part.is_between ? Cell("") : error_cell(part.effect.weight_gradient_error)});
  }
  if (has_between) {
    table.notes = {"*: not captured; interpolated between its neighbours, as the wider of them."};
  }
  return table;
}

ordered_json total_json(const PartTotal& total) {
  ordered_json json = {{"effect", json_number(total.is_finite ? total.effect : NAN)}};
  if (total.has_error) json["error"] = json_number(total.error());
  return json;
}

ordered_json candidate_json(const PartAdvice& advice, const PartCandidate& one) {
  ordered_json json = {{"format", one.format.empty() ? advice.base_format : one.format},
                       {"passes", one.why_not.empty()}};
  if (!one.why_not.empty()) json["why_not"] = one.why_not;
  if (!one.format.empty()) json["all_parts"] = total_json(one.all_narrow);
  if (one.parts.empty()) return json;
  json["chosen"] = total_json(one.total);
  json["time"] = json_number(base_share(advice, one));
  for (const PartPlan& part : one.parts) {
    PartTotal own;
    own.add(part.effect);
    ordered_json row = {{"part", part.part}, {"choice", choice_name(part.choice)}};
    row.update(total_json(own));
    if (!part.kept.empty()) row["kept"] = part.kept;
    if (part.is_between) row["interpolated"] = true;
    json["parts"].push_back(row);
  }
  return json;
}

}  // namespace

std::string part_advice_sentence(const PartAdvice& advice) {
  const std::string base = advice.base_format;
  const std::string bound = fmt::format("{:g}", advice.tolerance);
  const PartTotal& of_base = advice.base.total;
  switch (advice.answer) {
    case PartAdvice::Answer::kNone:
      return fmt::format("No answer: {} alone changes the loss by {}, more than {}.", base,
                         effect_text(of_base), bound);
    case PartAdvice::Answer::kUnclear:
      return fmt::format(
          "Unclear: {} changes the loss by {}; with its error that may be more than {}. Capture "
          "more batches, or give a larger --tolerance.",
          base, effect_text(of_base), bound);
    case PartAdvice::Answer::kBase:
      return fmt::format("{}: all parts change the loss by {}, within {}; nothing narrower is.",
                         base, effect_text(of_base), bound);
    case PartAdvice::Answer::kNarrow:
      break;
  }
  const PartCandidate& one = advice.used();
  const std::string time =
      advice.is_faster() ? fmt::format("an estimated {:.2f} of {}'s time on {}",
                                       base_share(advice, one), base, advice.gpu->name)
                         : fmt::format("no faster than {} on {} by the estimate for these shapes",
                                       base, advice.gpu->name);
  return fmt::format("{} {}: changes the loss by {}, within {}; {}.", one.format, where_text(one),
                     effect_text(one.total), bound, time);
}

std::string part_advice_text(const PartAdvice& advice, const PartAdviceFacts& facts,
                             const TextStyle& style) {
  const std::string sentence = part_advice_sentence(advice);
  const bool good =
      advice.answer == PartAdvice::Answer::kNarrow || advice.answer == PartAdvice::Answer::kBase;
  Blocks blocks = {paragraph(sentence, good ? Tone::kGood : Tone::kBad, sentence.find(':'))};
  const PartCandidate& used = advice.used();
  const size_t between = static_cast<size_t>(
      std::ranges::count_if(used.parts, [](const PartPlan& part) { return part.is_between; }));
  if (used.refuses_between) {
    blocks.push_back(paragraph(fmt::format(
        "What was not captured stays in {}: with it, interpolated, the loss would change by {}, "
        "more than {:g}.",
        advice.base_format, effect_text(used.with_between), advice.tolerance)));
  }
  if (between > 0) {
    blocks.push_back(paragraph(fmt::format("With {} that {} not captured, interpolated: {}.",
                                           counted(between, "part"), between == 1 ? "was" : "were",
                                           effect_text(used.with_between))));
  }
  blocks.push_back(formats_table(advice));
  if (advice.answer == PartAdvice::Answer::kNarrow) blocks.push_back(parts_table(advice, used));
  std::vector<std::string> not_run;
  for (const PartCandidate& one : advice.tried) {
    if (!was_run(one)) {
      not_run.push_back(fmt::format("{}: {}", one.format, one.why_not));
    }
  }
  if (!not_run.empty()) blocks.push_back(paragraph("Not run: " + join(not_run, "; ") + "."));
  if (!advice.not_counted.empty()) {
    blocks.push_back(paragraph("Not counted, because they are inside other parts: " +
                               few_names(advice.not_counted) + "."));
  }
  std::string limits = "Layers that were not captured stay in " + advice.base_format +
                       ". What several parts' roundings do to one another is not measured.";
  if (!used.total.has_error) {
    limits += " There is one batch: no error is known. Capture more steps or ranks.";
  }
  blocks.push_back(paragraph(limits));
  blocks.push_back(paragraph(
      fmt::format("{} of {}, {} of them read from {}.",
                  counted(static_cast<uint64_t>(advice.replays), "replay"),
                  advice.batches == 1 ? "one batch" : fmt::format("{} batches", advice.batches),
                  advice.read_again, printable(facts.runs))));
  return to_text(blocks, style);
}

std::string part_advice_json(const PartAdvice& advice, const PartAdviceFacts& facts) {
  ordered_json json = {{"format", "lockstep-part-advice"},
                       {"format_version", 1},
                       {"folder", facts.folder},
                       {"answer", answer_name(advice.answer)},
                       {"sentence", part_advice_sentence(advice)},
                       {"tolerance", advice.tolerance},
                       {"gpu", advice.gpu->name},
                       {"batches", advice.batches},
                       {"base", candidate_json(advice, advice.base)}};
  json["tried"] = ordered_json::array();
  for (const PartCandidate& one : advice.tried)
    json["tried"].push_back(candidate_json(advice, one));
  if (advice.answer == PartAdvice::Answer::kNarrow) json["chosen"] = advice.chosen;
  if (!advice.not_counted.empty()) json["not_counted"] = advice.not_counted;
  return json.dump(2) + "\n";
}

}  // namespace lockstep

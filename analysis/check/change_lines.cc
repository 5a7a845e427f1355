// See change_lines.h.
#include "analysis/check/change_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "analysis/check/script_places.h"
#include "emulation/format/format.h"
#include "src/core/counted.h"
#include "src/core/text.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

constexpr size_t kNamedLayers = 3;    // of a change, by name
constexpr size_t kNamedChanges = 12;  // ops that only one side has

// A baseline of a later version may name ops unknown here: null.
const OpDef* known_op(const std::string& name) {
  const std::span<const OpDef> all = ops();
  const auto found = std::ranges::find(all, name, &OpDef::name);
  return found == all.end() ? nullptr : &*found;
}
// Whether the op drops elements by a mask.
bool drops_elements(const std::string& name) {
  const OpDef* op = known_op(name);
  return op != nullptr && op->meaning.draws_mask != nullptr;
}
// Whether the op gives its operand on and lets no gradient through.
bool cuts_gradients(const std::string& name) {
  const OpDef* op = known_op(name);
  return op != nullptr && op->elements.copies && op->differentiable_outputs == 0;
}
bool is_narrow(const std::string& name) {
  const std::span<const Format> all = formats();
  const auto found = std::ranges::find(all, name, &Format::name);
  return found == all.end() || found->precision < find_format("fp32").precision;
}
// Whether the node casts to a format with fewer digits than FP32's.
bool casts_down(const NodeFacts& node) {
  const OpDef* op = known_op(node.op);
  if (op == nullptr || op->formats.attribute.empty()) return false;
  const auto format = node.attributes.find(std::string(op->formats.attribute));
  return format != node.attributes.end() && is_narrow(format->second);
}

std::string attribute_of(const NodeFacts& node, const std::string& name) {
  const auto found = node.attributes.find(name);
  return found == node.attributes.end() ? "none" : found->second;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' '), last = text.find_last_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::string named(const std::set<std::string>& layers) {
  std::string text;
  size_t count = 0;
  for (const std::string& layer : layers) {
    if (count++ == kNamedLayers) break;
    text += (text.empty() ? "" : ", ") + (layer.empty() ? std::string("(no layer)") : layer);
  }
  if (layers.size() > kNamedLayers) text += fmt::format(", +{} more", layers.size() - kNamedLayers);
  return text;
}

class Writer {
 public:
  Writer(const RunFacts& baseline, const RunFacts& run, const RunMatch& match)
      : base_(baseline), run_(run), match_(match), places_(baseline, run) {}

  ChangeLines write() {
    settings();
    nodes();
    sites();
    parameters();
    lanes();
    return std::move(out_);
  }

 private:
  void change(std::string text) { out_.changes.push_back(std::move(text)); }

  void setting(SettingChange change_of) {
    change(change_of.text);
    out_.settings.push_back(std::move(change_of));
  }

  void settings() {
    const auto value = [](const std::string& text) { return text.empty() ? "none" : text; };
    for (const SetupDifference& d : settings_of_loop(base_, run_)) {
      if (d.name == "batch_norm eps") continue;  // nodes() names it with its layers
      setting({fmt::format("{}: {} -> {}", d.name, value(d.baseline), value(d.run)), "", "",
               places_.line_of(d.name)});
    }
    for (const char* thing : {kAutocastLine, kScalerLine}) {
      const std::string before = script_value(base_, thing), after = script_value(run_, thing);
      if (before.empty() || after.empty() || before == after) continue;
      setting({fmt::format("{}: {} -> {}", thing, before, after), "", "", places_.line_of(thing)});
    }
    ties();
    batches();
    if (base_.data != run_.data) change(fmt::format("data: {} -> {}", base_.data, run_.data));
  }

  // Parameters that are one in one run and several in the other. A module may have another name.
  void ties() {
    const auto tied_in = [](const RunFacts& run, const auto& name_of) {
      std::set<std::string> ties;
      for (const std::string& tie : split(script_value(run, kTiesLine), ',')) {
        std::set<std::string> names;
        for (const std::string& name : split(tie, '=')) names.insert(name_of(trimmed(name)));
        ties.insert(fmt::format("{}", fmt::join(names, " = ")));
      }
      return ties;
    };
    const std::string before = script_value(base_, kTiesLine),
                      after = script_value(run_, kTiesLine);
    if (before.empty() || after.empty()) return;  // a capture of an older version
    if (tied_in(base_, [&](const std::string& name) { return name_here(name); }) ==
        tied_in(run_, [](const std::string& name) { return name; })) {
      return;
    }
    std::string line = places_.line_of(kTiesLine);
    const std::vector<std::string> names = split(before, '=');  // the last is what was tied
    if (line.empty()) line = places_.line_of_tensor(trimmed(names.back()));
    setting({fmt::format("{}: {} -> {}", kTiesLine, before, after), "", "", std::move(line),
             /*changes_draw=*/true});
  }
  std::string name_here(const std::string& parameter) const {
    const size_t end = parameter.rfind('.');
    if (end == std::string::npos) return parameter;
    const auto renamed = match_.renamed_layers.find(parameter.substr(0, end));
    return renamed == match_.renamed_layers.end() ? parameter
                                                  : renamed->second + parameter.substr(end);
  }

  // "1 of 8": how many micro-batches differ. A few more or less are another draw of a small data
  // set; half of them gone is a loop that repeats.
  void batches() {
    // "3 of 8": three different batches in eight.
    const auto different = [](const std::string& text) {
      return std::strtoll(text.c_str(), nullptr, 10);
    };
    const auto all = [](const std::string& text) {
      const size_t of = text.rfind(' ');
      return of == std::string::npos ? 0 : std::strtoll(text.c_str() + of, nullptr, 10);
    };
    const std::string before = script_value(base_, kBatchesLine);
    const std::string after = script_value(run_, kBatchesLine);
    if (before.empty() || after.empty() || before == after) return;
    // A shorter run has fewer; only a smaller share is another choice.
    if (2 * different(after) * all(before) > different(before) * all(after)) return;
    setting({fmt::format("different {}: {} -> {}", kBatchesLine, before, after), "", "",
             places_.line_of(kBatchesLine), /*changes_draw=*/true});
  }

  // Where its module was made, if that was changed (`nn.LayerNorm(64, eps=1e-3)`); else where it
  // runs.
  std::string line_of(const NodeFacts& node) const {
    const std::string made = places_.changed_line_of("module " + node.layer);
    return made.empty() ? node.source_line : made;
  }

  void nodes() {
    for (const auto& [before, after] : match_.renamed_layers) {
      change(fmt::format("layer {} is called {} here", before, after));
    }
    // By op, attribute and both values: the layers.
    struct Where {
      const NodeFacts* first = nullptr;
      std::set<std::string> layers = {};
    };
    std::map<std::tuple<std::string, std::string, std::string, std::string>, Where> attributes;
    match_.nodes.each(base_.nodes, run_.nodes, [&](const NodeFacts& old, const NodeFacts& now) {
      std::map<std::string, std::string> all = old.attributes;
      all.insert(now.attributes.begin(), now.attributes.end());
      for (const auto& [name, value] : all) {
        const std::string before = attribute_of(old, name), after = attribute_of(now, name);
        if (before == after) continue;
        out_.changes_casts |= name == kAutocastAttribute || casts_down(old) || casts_down(now);
        const auto at = attributes.try_emplace({old.op, name, before, after}, Where{&now}).first;
        at->second.layers.insert(now.layer);
      }
    });
    std::map<std::string, Where> gone, fresh;  // by op
    for (const size_t i : match_.nodes.free_before()) {
      const NodeFacts& node = base_.nodes[i];
      out_.changes_casts |= casts_down(node);
      gone.try_emplace(node.op, Where{&node}).first->second.layers.insert(node.layer);
    }
    for (const size_t j : match_.nodes.free_after()) {
      const NodeFacts& node = run_.nodes[j];
      out_.changes_casts |= casts_down(node);
      fresh.try_emplace(node.op, Where{&node}).first->second.layers.insert(node.layer);
    }
    for (const auto& [key, where] : attributes) {
      const auto& [op, name, before, after] = key;
      std::string text = fmt::format("{} {}: {} -> {} in {} ({})", op, name, before, after,
                                     counted(where.layers.size(), "layer"), named(where.layers));
      // Extents follow from the shapes of batches and weights.
      if (before.starts_with("[")) {
        change(std::move(text));
      } else {
        setting(
            {std::move(text), where.first->layer, op, line_of(*where.first), drops_elements(op)});
      }
    }
    size_t shown = 0;
    const auto list = [&](const char* side, const auto& ops) {
      for (const auto& [op, where] : ops) {
        std::string text = fmt::format("{} {}: {}", op, side, named(where.layers));
        if (drops_elements(op)) {  // no other op computes the same
          setting({op + " changed: " + text, where.first->layer, op, line_of(*where.first),
                   /*changes_draw=*/true});
        } else if (cuts_gradients(op)) {
          setting({std::move(text), where.first->layer, op, where.first->source_line});
        } else if (shown++ < kNamedChanges) {
          change(std::move(text));
        }
      }
    };
    list("only in the baseline", gone);
    list("only here", fresh);
    if (shown > kNamedChanges) change(fmt::format("+{} more ops", shown - kNamedChanges));
  }

  // An op that drops elements of another shape, from batches of the same: it was moved.
  void masks() {
    bool has_other_inputs = false;
    const SiteFacts* first = nullptr;
    std::string shape;
    match_.sites.each(base_.sites, run_.sites, [&](const SiteFacts& old, const SiteFacts& now) {
      if (old.shape == now.shape) return;
      has_other_inputs |= old.point == "storage" && old.role == "input";
      if (first != nullptr || !drops_elements(now.op)) return;
      first = &now;
      shape = old.shape;
    });
    if (first == nullptr || has_other_inputs) return;
    setting({fmt::format("{} changed: its values have the shape {} -> {}: {}", first->op, shape,
                         first->shape, named({first->layer})),
             first->layer, first->op, first->source_line, /*changes_draw=*/true});
  }

  void sites() {
    std::map<std::pair<std::string, std::string>, std::set<std::string>> shapes;
    match_.sites.each(base_.sites, run_.sites, [&](const SiteFacts& old, const SiteFacts& now) {
      if (old.shape != now.shape) shapes[{old.shape, now.shape}].insert(now.layer);
    });
    masks();
    size_t shown = 0;
    for (const auto& [both, layers] : shapes) {
      if (shown++ == kNamedLayers) break;
      change(fmt::format("shape: {} -> {} in {} ({})", both.first, both.second,
                         counted(layers.size(), "layer"), named(layers)));
    }
    if (shapes.size() > kNamedLayers) {
      change(fmt::format("+{} more shapes", shapes.size() - kNamedLayers));
    }
    const size_t without = match_.sites.free_before().size();
    if (without > 0) {
      change(fmt::format("{} of the baseline's {} have no counterpart here and are not judged",
                         without, counted(match_.sites.size(), "site")));
    }
  }

  void parameters() {
    const auto lacks = [&](std::string_view which, const ParameterFacts& p) {
      out_.no_match.push_back(no_parameter_text(which, p));
    };
    match_.parameters.each(
        base_.parameters, run_.parameters,
        [&](const ParameterFacts& old, const ParameterFacts& now) {
          if (old.name != now.name) {
            change(fmt::format("parameter {} is called {} here", old.name, now.name));
          } else if (old.shape != now.shape) {
            out_.no_match.push_back(
                fmt::format("parameter {}: shape {} -> {}", now.name, old.shape, now.shape));
          }
        });
    for (const size_t i : match_.parameters.free_before()) lacks("run", base_.parameters[i]);
    for (const size_t j : match_.parameters.free_after()) lacks("baseline", run_.parameters[j]);
  }

  // A lane that only took another's place is another lane.
  void lanes() {
    for (const LanePair& pair : match_.lanes) {
      const bool is_same = pair.is_same_lane();
      if (pair.before >= 0 && !is_same) {
        out_.no_match.push_back("the run has no lane " +
                                base_.lanes[static_cast<size_t>(pair.before)].name);
      }
      if (pair.after >= 0 && !is_same) {
        out_.extra.push_back("the baseline has no lane " +
                             run_.lanes[static_cast<size_t>(pair.after)].name +
                             ", so it is not judged");
      }
      if (!is_same) continue;
      const LaneFacts& before = base_.lanes[static_cast<size_t>(pair.before)];
      const LaneFacts& after = run_.lanes[static_cast<size_t>(pair.after)];
      if (pair.by == PairedBy::kPolicy) {
        change(fmt::format("lane {} is called {} here", before.name, after.name));
      }
      if (!pair.same_policy) {
        const auto first = [](const std::vector<std::string>& lines) {
          return lines.empty() ? "nothing" : "`" + lines[0] + "`";
        };
        change(fmt::format("lane {}: its policy differs, first {} -> {}", before.name,
                           first(pair.policy.before), first(pair.policy.after)));
      }
      if (!pair.same_engine) {
        change(fmt::format("lane {}: engine {}@{} -> {}@{}", before.name, before.engine,
                           before.target, after.engine, after.target));
      }
    }
  }

  const RunFacts& base_;
  const RunFacts& run_;
  const RunMatch& match_;
  const ScriptPlaces places_;
  ChangeLines out_;
};

}  // namespace

std::vector<SetupDifference> settings_of_loop(const RunFacts& baseline, const RunFacts& run) {
  const auto words = setup_in_words(run.options), old_words = setup_in_words(baseline.options);
  const std::map<std::string, std::string> ours(words.begin(), words.end());
  const std::map<std::string, std::string> theirs(old_words.begin(), old_words.end());
  std::vector<SetupDifference> settings;
  for (const auto& [name, before] : old_words) {
    const auto now = ours.find(name);
    const std::string after = now == ours.end() ? "" : now->second;
    if (after != before) settings.push_back({name, after, before});
  }
  for (const auto& [name, now] : words) {
    if (!theirs.contains(name)) settings.push_back({name, now, ""});
  }
  return settings;
}

std::string no_parameter_text(std::string_view which, const ParameterFacts& parameter) {
  return fmt::format("the {} has no parameter {} ({})", which, parameter.name, parameter.shape);
}

ChangeLines change_lines(const RunFacts& baseline, const RunFacts& run, const RunMatch& match) {
  return Writer(baseline, run, match).write();
}

}  // namespace lockstep

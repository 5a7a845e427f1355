// See script_places.h.
#include "analysis/check/script_places.h"

#include <algorithm>
#include <vector>

namespace lockstep {
namespace {

constexpr char kStepFunction[] = "step_fn";
constexpr std::string_view kFrozen = "frozen ";
constexpr std::string_view kStoredBuffer = "storage:b:", kStoredWeight = "storage:p:",
                           kUpdate = "optimizer:";

using Lines = std::vector<const ScriptLine*>;
using LinesByThing = std::map<std::string, Lines>;

LinesByThing lines_by_thing(const RunFacts& run) {
  LinesByThing found;
  for (const ScriptLine& line : run.lines) {
    if (!line.at.empty()) found[line.of].push_back(&line);
  }
  return found;
}

// The first line of a piece of code that `after` has more often: of its equal lines the one that
// was another, or the last.
const ScriptLine* first_changed(const Lines& before, const Lines& after) {
  std::map<std::string, int> more;
  for (const ScriptLine* line : after) ++more[line->hash];
  for (const ScriptLine* line : before) --more[line->hash];
  const ScriptLine* last = nullptr;
  for (size_t i = 0; i < after.size(); ++i) {
    if (more[after[i]->hash] <= 0) continue;
    const bool was_another = before.size() == after.size() && before[i]->hash != after[i]->hash;
    const bool is_single = std::ranges::count(after, after[i]->hash, &ScriptLine::hash) == 1;
    if (was_another || is_single) return after[i];
    last = after[i];
  }
  return last;
}

}  // namespace

ScriptPlaces::ScriptPlaces(const RunFacts& before, const RunFacts& after) {
  const LinesByThing known = lines_by_thing(before);
  for (const auto& [thing, lines] : lines_by_thing(after)) {
    lines_[thing] = lines.front()->at;
    const auto old = known.find(thing);
    // Code that freezes is new where there was none.
    const bool is_known = old != known.end() || (!known.empty() && thing.starts_with(kFrozen));
    const ScriptLine* changed =
        is_known ? first_changed(old == known.end() ? Lines() : old->second, lines) : nullptr;
    if (changed != nullptr) changed_[thing] = changed->at;
  }
  for (const ScriptLine& line : after.lines) {
    if (!line.value.empty()) values_.try_emplace(line.of, line.value);
  }
}

std::string ScriptPlaces::changed_line_of(const std::string& thing) const {
  const auto found = changed_.find(thing);
  return found == changed_.end() ? "" : found->second;
}

std::string ScriptPlaces::changed_thing_in(const std::string& layer) const {
  if (layer.empty()) return changed_.contains(kStepFunction) ? kStepFunction : "";
  if (const std::string module = "module " + layer; changed_.contains(module)) return module;
  const std::string start = "tensor " + layer + ".";
  for (auto tensor = changed_.lower_bound(start);
       tensor != changed_.end() && tensor->first.starts_with(start); ++tensor) {
    if (tensor->first.find('.', start.size()) == std::string::npos) return tensor->first;
  }
  for (std::string path = layer;;) {
    const auto kind = values_.find("module " + path);
    if (kind != values_.end() && changed_.contains(kind->second)) return kind->second;
    if (path.empty()) return "";
    const size_t end = path.rfind('.');
    path = end == std::string::npos ? "" : path.substr(0, end);
  }
}

std::string ScriptPlaces::line_of(const std::string& thing) const {
  if (std::string changed = changed_line_of(thing); !changed.empty()) return changed;
  if (const auto found = lines_.find(thing); found != lines_.end()) return found->second;
  const size_t end = thing.rfind(' ');
  return end == std::string::npos ? "" : line_of(thing.substr(0, end));
}

std::string ScriptPlaces::line_of_node(std::string_view node) const {
  const auto rest = [&](std::string_view start) { return node.substr(start.size()); };
  if (node.starts_with(kUpdate)) return line_of("optimizer");
  if (node.starts_with(kStoredWeight)) return line_of_tensor(rest(kStoredWeight));
  return node.starts_with(kStoredBuffer) ? line_of_tensor(rest(kStoredBuffer)) : "";
}

std::string ScriptPlaces::line_of_tensor(std::string_view name) const {
  const std::string line = line_of("tensor " + std::string(name));
  if (!line.empty()) return line;
  const size_t end = name.rfind('.');
  const std::string_view owner = end == std::string_view::npos ? "" : name.substr(0, end);
  return line_of("module " + std::string(owner));
}

std::string ScriptPlaces::line_of_frozen(std::string_view parameter) const {
  const std::string line = changed_line_of(std::string(kFrozen) + std::string(parameter));
  return line.empty() ? line_of_tensor(parameter) : line;
}

std::string script_value(const RunFacts& run, std::string_view thing) {
  const auto found = std::ranges::find_if(
      run.lines, [&](const ScriptLine& line) { return line.of == thing && !line.value.empty(); });
  return found == run.lines.end() ? "" : found->value;
}

}  // namespace lockstep

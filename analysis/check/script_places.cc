// See script_places.h.
#include "analysis/check/script_places.h"

#include <algorithm>
#include <set>

namespace lockstep {
namespace {

constexpr std::string_view kStoredBuffer = "storage:b:", kStoredWeight = "storage:p:",
                           kUpdate = "optimizer:";

}  // namespace

ScriptPlaces::ScriptPlaces(const RunFacts& before, const RunFacts& after) {
  std::map<std::string, std::set<std::string>> known;  // by thing: the baseline's code
  for (const ScriptLine& line : before.lines) {
    if (!line.at.empty()) known[line.of].insert(line.hash);
  }
  std::set<std::string> found;
  for (const ScriptLine& line : after.lines) {
    if (line.at.empty() || found.contains(line.of)) continue;
    const auto code = known.find(line.of);
    const bool is_new = code != known.end() && !code->second.contains(line.hash);
    if (is_new) found.insert(line.of);
    if (is_new || !lines_.contains(line.of)) lines_[line.of] = line.at;
  }
}

std::string ScriptPlaces::line_of(const std::string& thing) const {
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

std::string script_value(const RunFacts& run, std::string_view thing) {
  const auto found = std::ranges::find_if(
      run.lines, [&](const ScriptLine& line) { return line.of == thing && !line.value.empty(); });
  return found == run.lines.end() ? "" : found->value;
}

}  // namespace lockstep

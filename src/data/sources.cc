// The table of data kinds, in the order that `lockstep list data` prints; each kind's file gives
// its row as NAME_data().
#include "src/data/sources.h"

#include <algorithm>
#include <charconv>

#include "src/core/error.h"
#include "src/core/text.h"

#define LOCKSTEP_DATA_KINDS(kind)                                                          \
  kind(synthetic) kind(shapes) kind(grammar) kind(mnist) kind(fashion_mnist) kind(cifar10) \
      kind(text)

namespace lockstep {

#define LOCKSTEP_DECLARE(name) DataSource name##_data();
LOCKSTEP_DATA_KINDS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::span<const DataSource> data_sources() {
#define LOCKSTEP_ROW(name) name##_data(),
  static const DataSource kSources[] = {LOCKSTEP_DATA_KINDS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return kSources;
}

namespace {

std::string spec_list() {
  std::string text;
  for (const DataSource& source : data_sources()) {
    const bool optional = source.argument.front() == '[';
    if (!text.empty()) text += ", ";
    text += source.kind;
    text += optional ? "[:" + std::string(source.argument.substr(1))
                     : ":" + std::string(source.argument);
  }
  return text;
}

// Throws: InputError with the kinds that serve the task.
void require_task(const DataSource& source, std::string_view spec, Task task) {
  if (std::ranges::count(source.tasks, task) > 0) return;
  std::vector<std::string> serving;
  for (const DataSource& other : data_sources()) {
    if (std::ranges::count(other.tasks, task) > 0) serving.emplace_back(other.kind);
  }
  throw InputError("data '" + std::string(spec) + "': has no data for the model's task (" +
                       std::string(to_string(task)) + ")",
                   "kinds that do: " + join(serving, ", "));
}

}  // namespace

int64_t parse_example_count(std::string_view kind, std::string_view argument, int64_t fallback,
                            int64_t low, int64_t high) {
  if (argument.empty()) return fallback;
  int64_t count = 0;
  const char* end = argument.data() + argument.size();
  const auto [stop, code] = std::from_chars(argument.data(), end, count);
  if (code != std::errc() || stop != end || count < low || count > high) {
    throw InputError("data '" + std::string(kind) + ":" + std::string(argument) +
                         "': the number must be an integer in " + std::to_string(low) + ".." +
                         std::to_string(high),
                     "e.g. " + std::string(kind) + ":" + std::to_string(fallback));
  }
  return count;
}

const DataSource& find_data_source(std::string_view spec) {
  const std::string_view kind = spec.substr(0, spec.find(':'));
  std::vector<std::string> kinds;
  for (const DataSource& source : data_sources()) {
    if (source.kind == kind) return source;
    kinds.emplace_back(source.kind);
  }
  throw InputError("data '" + std::string(spec) + "': unknown kind '" + std::string(kind) + "'",
                   did_you_mean(kind, kinds) + "; write one of " + spec_list());
}

std::unique_ptr<DataSet> open_data_set(std::string_view spec, const DataRequest& request) {
  const DataSource& source = find_data_source(spec);
  const size_t colon = spec.find(':');
  const bool has_argument = colon != std::string_view::npos;
  const std::string_view argument = has_argument ? spec.substr(colon + 1) : std::string_view();
  const bool optional = source.argument.front() == '[';
  if (argument.empty() && (has_argument || !optional)) {
    throw InputError("data '" + std::string(spec) + "': nothing follows the colon",
                     "write one of " + spec_list());
  }
  require_task(source, spec, request.task);
  return source.open(argument, request);
}

}  // namespace lockstep

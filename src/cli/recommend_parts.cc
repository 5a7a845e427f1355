// See recommend_parts.h.
#include "src/cli/recommend_parts.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "analysis/search/trial_runs.h"
#include "reports/advice/part_advice_text.h"
#include "src/cli/arguments/search_arguments.h"
#include "src/cli/command.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/text.h"
#include "src/core/text_file.h"

namespace lockstep {

int recommend_parts(const RecommendPartsArgs& args) {
  const PartSearchOptions& search = args.search;
  const PartsIndex index = read_parts_index(search.replay.model);
  JobWatch watch;
  watch.begin = [&](const Job& job, size_t number, size_t count) {
    if (args.quiet || args.json) return;
    const std::vector<std::string> lanes(job.options.lanes.begin() + 1, job.options.lanes.end());
    print_note(
        fmt::format("part {}/{}: {}, in {}", number + 1, count, job.label, join(lanes, ", ")));
  };
  std::optional<PartAdvice> found;
  try {
    found.emplace(search_parts(index, search, watch, catch_stop_signals()));
  } catch (const SearchStopped&) {
    return search_stopped(search.folder);
  }
  const PartAdvice& advice = *found;
  const PartAdviceFacts facts{.folder = index.folder, .runs = search.folder};
  print_text(args.json ? part_advice_json(advice, facts)
                       : part_advice_text(advice, facts, output_style()));
  const bool has_policy =
      advice.answer == PartAdvice::Answer::kNarrow || advice.answer == PartAdvice::Answer::kBase;
  if (!has_policy) {
    if (!args.output.empty() || args.emit) {
      fmt::print(stderr, "lockstep: note: there is no policy to write\n");
    }
    return kExitInconclusive;
  }
  const std::string policy = policy_text(*advice.used().candidate);
  if (args.emit) {
    std::string evidence = part_advice_sentence(advice);
    evidence.pop_back();  // the full stop
    args.emit(advice.run, policy, evidence);
  }
  if (!args.output.empty()) {
    write_text_file_atomically(args.output, policy);
    if (!args.json) print_line("Wrote " + args.output + ".");
  } else if (!args.json && !args.emit) {
    print_text("\nThe policy (write it with -o policy.toml):\n\n" + policy);
  }
  return kExitFine;
}

}  // namespace lockstep

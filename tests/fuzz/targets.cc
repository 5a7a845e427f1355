// THE table of targets. A new reader is one row here, its function in the file of its kind.
#include <fmt/format.h>

#include "src/core/find_row.h"
#include "tests/fuzz/target_functions.h"

namespace lockstep::fuzz {

std::span<const Target> targets() {
  static const Target kTargets[] = {
      {"policy", "policy files, lowered for a small network", Grammar::kToml, 60, policy_seeds,
       read_policy_text},
      {"lane", "names of lanes, presets, hardware", Grammar::kWords, 60, lane_seeds, read_lane},
      {"format", "names of formats, accumulators, roundings", Grammar::kWords, 60, format_seeds,
       read_format},
      {"round", "arguments of `round`", Grammar::kWords, 20, round_seeds, run_round},
      {"dot", "arguments of `dot`", Grammar::kWords, 20, dot_seeds, run_dot},
      {"csv", "tables of dot products", Grammar::kLines, 20, csv_seeds, read_csv},
      {"explain", "arguments of `explain`", Grammar::kWords, 10, explain_seeds, run_explain},
      {"replay", "arguments of `replay`, refused before anything runs", Grammar::kWords, 10,
       replay_seeds, refuse_replay},
      {"hyper", "--optimizer-args, --change", Grammar::kWords, 60, hyper_seeds, read_hyper},
      {"schedule", "--schedule", Grammar::kWords, 60, schedule_seeds, read_schedule},
      {"group", "--group", Grammar::kWords, 60, group_seeds, read_group},
      {"data", "--data without files", Grammar::kWords, 10, data_seeds, read_data},
      {"idx", "IDX files, plain or compressed", Grammar::kBytes, 40, idx_seeds, read_idx_file},
      {"corpus", "text files to learn from", Grammar::kLines, 40, corpus_seeds, read_corpus},
      {"npy", "tensors of NumPy", Grammar::kBytes, 60, npy_seeds, read_npy},
      {"graph", "graphs as JSON, differentiated", Grammar::kJson, 60, graph_seeds, read_graph},
      {"rules", "rules of `check`", Grammar::kToml, 60, rules_seeds, read_rules},
      {"options", "options of a run as JSON", Grammar::kJson, 60, options_seeds, read_options},
      {"baseline", "baselines", Grammar::kJson, 40, baseline_seeds, read_baseline_text},
      {"baseline-check", "`check` of a good run by a baseline", Grammar::kJson, 5, baseline_seeds,
       check_by_baseline},
      {"snapshot", "progress of a run, for `report --live`", Grammar::kJson, 40, snapshot_seeds,
       read_snapshot},
      {"verification", "results of `verify` next to a capture", Grammar::kJson, 60,
       verification_seeds, read_verification_text},
      {"escapes", "texts of any origin, escaped for each output", Grammar::kWords, 60, escape_seeds,
       check_escapes},
      {"capture", "captures, verified", Grammar::kEdits, 10, capture_seeds, use_capture},
      {"report", "run files, as text, page and JSON", Grammar::kEdits, 5, run_seeds, report_run},
      {"check", "run files, by another run and by a baseline", Grammar::kEdits, 5, run_seeds,
       check_run},
      {"recommend", "run files, and the policy written from them", Grammar::kEdits, 5, run_seeds,
       recommend_of_run},
      {"resume", "run files, to continue them", Grammar::kEdits, 10, run_seeds, resume_run},
      {"verify", "run files and their checksums", Grammar::kEdits, 10, run_seeds, verify_run},
      {"state", "checkpoints, for --resume and --start-from", Grammar::kEdits, 20, state_seeds,
       read_state_file},
  };
  return kTargets;
}

std::string& seed_folder() {
  static std::string folder;
  return folder;
}

const Target& find_target(std::string_view name) {
  return find_row("target", name, targets());
}

}  // namespace lockstep::fuzz

// The functions of the table of targets, by the file that defines them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

using Seeds = std::vector<std::string>;

// target_texts.cc
Seeds policy_seeds();
void read_policy_text(std::string_view input, const Place&);
Seeds lane_seeds();
void read_lane(std::string_view input, const Place&);
Seeds format_seeds();
void read_format(std::string_view input, const Place&);
Seeds hyper_seeds();
void read_hyper(std::string_view input, const Place&);
Seeds schedule_seeds();
void read_schedule(std::string_view input, const Place&);
Seeds group_seeds();
void read_group(std::string_view input, const Place&);
Seeds rules_seeds();
void read_rules(std::string_view input, const Place&);
Seeds graph_seeds();
void read_graph(std::string_view input, const Place&);
Seeds options_seeds();
void read_options(std::string_view input, const Place&);
Seeds verification_seeds();
void read_verification_text(std::string_view input, const Place&);
Seeds escape_seeds();
void check_escapes(std::string_view input, const Place&);

// target_arguments.cc: one argument a line
Seeds round_seeds();
void run_round(std::string_view input, const Place&);
Seeds dot_seeds();
void run_dot(std::string_view input, const Place&);
Seeds explain_seeds();
void run_explain(std::string_view input, const Place&);
Seeds replay_seeds();
void refuse_replay(std::string_view input, const Place&);

// target_files.cc
Seeds csv_seeds();
void read_csv(std::string_view input, const Place&);
Seeds data_seeds();
void read_data(std::string_view input, const Place&);
Seeds idx_seeds();
void read_idx_file(std::string_view input, const Place&);
Seeds corpus_seeds();
void read_corpus(std::string_view input, const Place&);
Seeds npy_seeds();
void read_npy(std::string_view input, const Place&);
Seeds baseline_seeds();
void read_baseline_text(std::string_view input, const Place&);
void check_by_baseline(std::string_view input, const Place&);
Seeds snapshot_seeds();
void read_snapshot(std::string_view input, const Place&);

// target_runs.cc: edits of HDF5 files
Seeds capture_seeds();
void use_capture(std::string_view input, const Place&);
Seeds run_seeds();
void report_run(std::string_view input, const Place&);
void check_run(std::string_view input, const Place&);
void recommend_of_run(std::string_view input, const Place&);
void resume_run(std::string_view input, const Place&);
void verify_run(std::string_view input, const Place&);
Seeds state_seeds();
void read_state_file(std::string_view input, const Place&);

}  // namespace lockstep::fuzz

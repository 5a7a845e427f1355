// The options that a command line writes in a way of their own: lanes and their twins, the
// optimizer's numbers, schedules, groups, the level of statistics. Each both ways, for its row.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/train/run_option.h"

namespace lockstep {

void parse_lanes(const RunOption& row, std::string_view text, RunOptions& options);
// Without the twins that a replay adds by itself; "--twins 0" where it would add some.
std::vector<std::string> printed_lanes(const RunOption& row, const RunOptions& options);
// Adds twins to the lanes until there are as many, those already listed included.
void parse_twins(const RunOption& row, std::string_view text, RunOptions& options);
std::string usual_twins_text(const RunOptions& options);
void add_twins(RunOptions& options, int64_t wanted);
// A twin is of use if an outcome is judged: some lane besides the reference keeps its own weights.
bool needs_twin(const RunOptions& options);

// "sgd 0.05; adam, adamw 0.001": the defaults of an optimizer's number.
std::string optimizer_number_help(std::string_view number);
// A number given for an optimizer that lacks it would be ignored silently.
void parse_optimizer_number(const RunOption& row, std::string_view text, RunOptions& options);
std::vector<std::string> printed_optimizer_number(const RunOption& row, const RunOptions& options);
void parse_optimizer_args(const RunOption& row, std::string_view text, RunOptions& options);
// The numbers that none of all rows has as its own.
std::vector<std::string> printed_optimizer_args(const RunOption& row,
                                                std::span<const RunOption> all,
                                                const RunOptions& options);

void parse_schedule_option(const RunOption& row, std::string_view text, RunOptions& options);
std::vector<std::string> printed_schedule(const RunOption& row, const RunOptions& options);
void parse_group_option(const RunOption& row, std::string_view text, RunOptions& options);
std::vector<std::string> printed_groups(const RunOption& row, const RunOptions& options);

// Also sets the steps between measured ones; --statistics-every, given after it, overrides them.
void parse_statistics(const RunOption& row, std::string_view text, RunOptions& options);
// After both were read. `level`: as given, or "". Throws: InputError: steps to measure for a level
// that measures none.
void finish_statistics(std::string_view level, Measuring& measuring);
std::string statistics_text(const RunOptions& options);
std::vector<std::string> printed_statistics_every(const RunOption& row, const RunOptions& options);

}  // namespace lockstep

// The alarms of a check as tables: of their groups, and of each.
#pragma once

#include <string>
#include <vector>

#include "analysis/check/alarm_groups.h"
#include "reports/writers/block.h"

namespace lockstep {

// How many in each group, the first and the largest.
TableBlock group_table(const std::vector<AlarmGroup>& groups);
// One row each, of the alarms from `from` on.
TableBlock alarm_table(const std::vector<Alarm>& alarms, size_t from, size_t most);

// The first lines under a title, and how many more there are; nothing without lines.
void add_list(Blocks& blocks, const std::string& title, const std::vector<std::string>& lines);

// "ln1 layer_norm output (model.py:12)"; "the lane's loss" has no place: "the whole lane".
std::string place_and_line(const Alarm& alarm);
// By how many times a number passes its limit: "3.4"; "-" where none at all is allowed.
std::string excess_text(const Alarm& alarm);

}  // namespace lockstep

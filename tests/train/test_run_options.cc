// The rows of run options: each holds a member of its own, every member has one, and limits hold.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_option_syntax.h"
#include "src/train/run_option_text.h"

namespace lockstep {
namespace {

template <typename... Members>
std::vector<const void*> addresses(const Members&... members) {
  return {&members...};
}

// A member more or less and this does not compile.
std::vector<const void*> members_of(const RunOptions& o) {
  const auto& [model, sizes, data, lanes, steps, batch, accumulate, workers, backward, optimizer,
               schedule, groups, clip_norm, clip_value, clips_scaled, loss_factor, clip_norm_type,
               freeze, eval_batch_norm, batch_norm_eps, rewrites, loop_changes, capture_hash, part,
               cycle, captured_order, start_from, start_hash, eval_in_fp32, mode, decisions,
               eval_every, eval_examples, held_out, measuring, watch, checkpoint_every, seed, nudge,
               seeds, policy_texts] = o;
  const auto& [on, statistics_every, counts_between, histogram_every, sums_every] = measuring;
  // Not options: the program alone sets these.
  static_cast<void>(held_out), static_cast<void>(policy_texts), static_cast<void>(on);
  return addresses(model, sizes, data, lanes, steps, batch, accumulate, workers, backward,
                   optimizer, schedule, groups, clip_norm, clip_value, clips_scaled, loss_factor,
                   clip_norm_type, freeze, eval_batch_norm, batch_norm_eps, rewrites, loop_changes,
                   capture_hash, part, cycle, captured_order, start_from, start_hash, eval_in_fp32,
                   mode, decisions, eval_every, eval_examples, watch, checkpoint_every, seed, nudge,
                   seeds, statistics_every, counts_between, histogram_every, sums_every);
}

std::string problem_of(const RunOption& row, const std::string& text) {
  RunOptions options;
  try {
    set_option(row, text, options);
  } catch (const InputError& error) {
    return error.problems().front();
  }
  return "";
}

TEST_CASE("every member of RunOptions has one row") {
  const RunOptions options;
  std::multiset<const void*> rows;
  for (const RunOption& row : run_options()) {
    if (const void* address = address_of(row, options)) rows.insert(address);
  }
  const std::vector<const void*> members = members_of(options);
  for (size_t i = 0; i < members.size(); ++i) {
    CAPTURE(i);
    CHECK(rows.count(members[i]) == 1);
  }
  CHECK(rows.size() == members.size());
}

TEST_CASE("rows: names, keys and places are their own") {
  std::set<std::string_view> options, keys, settings;
  std::set<int> places;
  int count = 0;
  for (const RunOption& row : run_options()) {
    CAPTURE(row.option);
    CAPTURE(row.key);
    CHECK((row.option.empty() || options.insert(row.option).second));
    CHECK((row.setting.empty() || settings.insert(row.setting).second));
    CHECK(row.option.empty() == row.group.empty());
    CHECK((row.option.empty() || !row.help.empty() || !row.number.empty()));
    CHECK(row.key.empty() == std::holds_alternative<std::monostate>(row.member));
    CHECK((row.of == OptionOf::kCaptures) == !row.refused.empty());
    CHECK((row.told.empty() || row.told.size() == row.words.size()));
    CHECK((row.setting.empty() || row.effect != OptionEffect::kNothing));
    if (row.key.empty()) continue;
    CHECK(keys.insert(row.key).second);
    CHECK(places.insert(row.place).second);
    ++count;
  }
  CHECK(*places.begin() == 1);
  CHECK(*places.rbegin() == count);
}

TEST_CASE("defaults lie within their limits, and other values are refused with the option's name") {
  const RunOptions defaults;
  for (const RunOption& row : run_options()) {
    CAPTURE(row.option);
    ProblemList problems("");
    check_option(row, defaults, problems);
    CHECK(problems.empty());
    if (row.option.empty()) continue;
    const bool is_text =
        std::holds_alternative<OptionMember<std::string>>(row.member) ||
        std::holds_alternative<OptionMember<std::vector<std::string>>>(row.member) ||
        std::holds_alternative<OptionMember<HyperChoice>>(row.member) || row.repeats ||
        row.type.empty();
    if (is_text) continue;
    CHECK(problem_of(row, "a,,b").starts_with(row.option));
    if (row.low > 0)
      CHECK(problem_of(row, "0").starts_with(std::string(row.option) + " 0: a whole"));
  }
  RunOptions wrong;
  wrong.clip_norm = -1;
  wrong.clip_norm_type = 0;
  ProblemList problems("run");
  for (const RunOption& row : run_options()) check_option(row, wrong, problems);
  CHECK(problems.count() == 2);
}

TEST_CASE("twins: those listed count, and lanes that are not judged get none") {
  RunOptions options;
  CHECK(!needs_twin(options));
  options.lanes = {"fp32", "tf32", "twin2@software"};
  CHECK(needs_twin(options));
  add_twins(options, 3);
  CHECK(options.lanes ==
        std::vector<std::string>{"fp32", "tf32", "twin2@software", "twin", "twin3"});
  options.mode = LaneMode::kSynced;
  CHECK(!needs_twin(options));
}

}  // namespace
}  // namespace lockstep

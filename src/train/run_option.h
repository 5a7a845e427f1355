// What is known of an option of a run: what it is called, which values it takes, what it changes.
// Plain data. The rows are in run_option_rows.h, run_option_text.h reads and writes values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/train/run_options.h"

namespace lockstep {

inline constexpr uint64_t kLargestCount = INT64_MAX;  // 2^63-1: steps and intervals
// A batch of more than a million examples is a mistake: one layer's values would fill any memory.
inline constexpr uint64_t kLargestBatch = 1 << 20;

// Where an option's value lies in RunOptions.
template <typename T>
struct OptionMember {
  T& (*in)(RunOptions&);
  const T& (*of)(const RunOptions&);
};
// The same for a member that takes one of the row's words, by their index.
struct ChosenWord {
  size_t (*index)(const RunOptions&);
  void (*choose)(RunOptions&, size_t);
  const void* (*address)(const RunOptions&);
};
// None: the option is another way to write an earlier row's member ("--lr").
using OptionPlace =
    std::variant<std::monostate, ChosenWord, OptionMember<std::string>, OptionMember<int64_t>,
                 OptionMember<uint64_t>, OptionMember<bool>, OptionMember<double>,
                 OptionMember<std::optional<double>>, OptionMember<std::vector<std::string>>,
                 OptionMember<std::vector<int64_t>>, OptionMember<std::map<std::string, double>>,
                 OptionMember<HyperValues>, OptionMember<HyperChoice>,
                 OptionMember<std::vector<ParameterGroup>>>;

// The runs whose command line takes an option. A capture itself sets the kModels ones.
enum class OptionOf : uint8_t { kAll, kModels, kCaptures };

// What another value makes of a run.
enum class OptionEffect : uint8_t {
  kNothing,   // the same numbers, or fewer or more of them
  kRepeat,    // the same training once more: its numbers differ by no more than noise
  kDraw,      // another draw of the same training: ensembles of such runs judge it
  kTraining,  // another training: a baseline judges it by its numbers
  kReplay,    // another experiment on the same training, which no baseline judges
};

// The limits of a number that is not negative.
struct NumberLimit {
  bool zero = true;      // 0 is allowed
  bool infinity = true;  // as is infinity
  std::string_view hint;
};

struct RunOption {
  std::string_view option = {};  // "--batch"; "": not on the command line
  std::string_view key = {};     // in the JSON of run files; "": part of another row's
  int place = 0;  // of the key among all: the hash of a run depends on it. A new row takes the next
  std::string_view group = {}, type = {}, help = {};
  OptionPlace member = {};
  OptionOf of = OptionOf::kAll;
  std::string_view refused = {};  // why a built-in model refuses it, and what to do instead
  std::string_view instead = "leave it out";

  // --- values ---
  uint64_t low = 0, high = kLargestCount;        // of whole numbers; in files `low` alone
  std::optional<NumberLimit> limit = {};         // of other numbers
  std::span<const std::string_view> words = {};  // that a ChosenWord takes
  std::string_view none = {};                    // in JSON, where a number is not given
  std::span<const HyperParameter> (*numbers)(std::string_view) = nullptr;  // of a HyperChoice
  bool is_list = false;  // texts are a list in JSON, not one text
  bool repeats = false;  // given once for each element

  // --- on a command line, where it has a syntax of its own ---
  std::string_view number = {};  // of the optimizer: "lr"
  void (*parse)(const RunOption&, std::string_view, RunOptions&) = nullptr;
  std::string (*text)(const RunOptions&) = nullptr;
  std::vector<std::string> (*printed)(const RunOption&, const RunOptions&) = nullptr;
  bool shows_default = true;

  // --- in files ---
  bool only_if_set = false;  // hashes of other runs are those of versions without the option
  bool is_required = false;  // every file has it; else older ones mean the default or `older`
  std::optional<int64_t> older = {};

  // --- where two runs are compared ---
  OptionEffect effect = OptionEffect::kNothing;
  std::string_view setting = {};                             // its name; "": part of another row's
  std::string (*setting_text)(const RunOptions&) = nullptr;  // null: as on a command line
  bool in_baselines = true;  // false: the settings in a baseline lack it, as those of older ones
  std::string_view no_baseline = {};            // why `baseline record` refuses it
  std::span<const std::string_view> told = {};  // a report's words for each of `words`; "": none
};

}  // namespace lockstep

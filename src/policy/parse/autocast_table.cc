// Reads the format and its cache, then the four lists of ops.
#include "src/policy/parse/autocast_table.h"

#include <array>

#include "src/core/text.h"
#include "src/policy/parse/keys.h"

namespace lockstep {
namespace {

struct OpListKey {
  std::string_view key;
  CastClass cast_class;
};
constexpr std::array kOpLists = {
    OpListKey{"low_precision", CastClass::kLowPrecision},
    OpListKey{"fp32", CastClass::kFp32},
    OpListKey{"promote", CastClass::kPromote},
    OpListKey{"follow", CastClass::kFollow},
};

CastClass find_class(const std::string& name) {
  std::vector<std::string> keys;
  for (const OpListKey& list : kOpLists) {
    if (list.key == name) return list.cast_class;
    keys.emplace_back(list.key);
  }
  throw InputError("unknown class of ops", did_you_mean(name, keys));
}

}  // namespace

void read_autocast(TomlTable& table, Policy& policy, bool is_preset) {
  read_format_or_none(table, "format", policy.low, policy.notes);
  read_name(table, "unlisted", find_class, policy.unlisted);
  if (const auto cache = table.boolean("weight_cache")) policy.weight_cache = *cache;
  read_name(table, "cross_entropy", second_of("whole", "parts"), policy.splits_cross_entropy);
  OpNames names = OpNames::kTorch;
  read_name(table, "names", find_op_names, names);
  std::map<std::string, std::string_view> listed;  // op -> its list in this file
  for (const OpListKey& list : kOpLists) {
    for (const auto& item : table.texts(list.key)) {
      if (!is_preset && !check_listed_op(table, list.key, item, names)) continue;
      for (const std::string& op : lockstep_op_names(names, item.text)) {
        const auto [where, is_new] = listed.emplace(op, list.key);
        if (!is_new && where->second != list.key) {
          table.problem_at(item.line, list.key,
                           "has '" + item.text + "', which " + std::string(where->second) +
                               " has too: an op belongs to one class");
        }
        policy.op_class[op] = list.cast_class;
      }
    }
  }
  table.finish();
  if (policy.low == nullptr && !listed.empty()) {
    table.problem("", "has op lists but no format: there is nothing to cast to",
                  "add format = \"fp16\"");
  }
}

}  // namespace lockstep

// See value_plan.h.
#include "src/execute/value_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace lockstep {
namespace {

constexpr int kForever = 1 << 30;

// The nodes during which something is in a slot, both ends included.
struct Stay {
  int64_t bytes;
  int from, to;
  int* slot;  // to be chosen
};

class Planner {
 public:
  Planner(const Program& program, const PlanRules& rules)
      : program_(program), rules_(rules), lag_(rules.readers_lag) {
    plan_.slot_of.assign(program.values.size(), -1);
    operand_of_.assign(program.values.size(), -1);
    for (const auto& [operand, cast] : rules.casts) {
      operand_of_[static_cast<size_t>(cast)] = operand;
    }
    const int nodes = program.instructions.empty() ? 0 : program.instructions.back().node + 1;
    bucket_nodes_ = (nodes + kBuckets - 1) / kBuckets + 1;
    find_makers();
    share_copies();
    find_uses();
  }

  // In the longest time without a use. Nodes are in order, and so are a value's uses.
  void find_rests() {
    for (size_t v = 0; v < uses_.size(); ++v) {
      const std::vector<int>& uses = uses_[v];
      if (!is_made_[v] || elements(v) < kLeastRestElements || uses.back() == kForever) continue;
      size_t at = 0;
      for (size_t u = 1; u + 1 < uses.size(); ++u) {
        if (uses[u + 1] - uses[u] > uses[at + 1] - uses[at]) at = u;
      }
      if (uses.size() < 2 || uses[at + 1] - uses[at] - lag_ - 1 < kLeastRestNodes) continue;
      ValuePlan::Rest rest{
          .value = static_cast<int>(v), .begins = uses[at] + lag_ + 1, .ends = uses[at + 1]};
      if (const auto operand = kept_operand(v, rest.ends)) {
        rest.operand = *operand;
      } else if (const auto form = form_of(v)) {
        rest.form = *form;
      } else {
        continue;
      }
      plan_.rests.push_back(rest);
    }
  }

  ValuePlan plan() {
    std::vector<Stay> stays = find_stays();
    // Larger ones first, so that every slot is as large as its first stay.
    std::ranges::stable_sort(stays, [](const Stay& a, const Stay& b) { return a.bytes > b.bytes; });
    for (const Stay& stay : stays) *stay.slot = choose(stay);
    return std::move(plan_);
  }

 private:
  bool runs(const Instruction& instruction) const {
    return rules_.left_out.empty() || !rules_.left_out[static_cast<size_t>(instruction.node)];
  }

  void find_makers() {
    is_made_.assign(program_.values.size(), false);
    for (const Instruction& instruction : program_.instructions) {
      if (!runs(instruction)) continue;
      for (const int v : instruction.outputs) is_made_[static_cast<size_t>(v)] = true;
    }
  }

  // Values from outside are not shared: who bound them may change them.
  void share_copies() {
    plan_.original_of.assign(program_.values.size(), -1);
    for (const auto& [from, to] : rules_.copies) {
      const size_t original = memory_of(from);
      if (!is_made_[original]) continue;
      plan_.original_of[static_cast<size_t>(to)] = static_cast<int>(original);
      is_made_[static_cast<size_t>(to)] = false;
    }
  }
  size_t memory_of(int v) const { return static_cast<size_t>(plan_.memory_of(v)); }

  // Those of copies are the original's.
  void find_uses() {
    uses_.resize(program_.values.size());
    for (const Instruction& instruction : program_.instructions) {
      if (!runs(instruction)) continue;
      for (const auto* list : {&instruction.inputs, &instruction.outputs}) {
        for (const int v : *list) uses_[memory_of(v)].push_back(instruction.node);
      }
    }
    for (const auto& [id, v] : program_.results) uses_[memory_of(v)].push_back(kForever);
  }

  // The operand of a cast, if it is in memory before the node anyway: it rests in no form, and is
  // no cast itself.
  std::optional<int> kept_operand(size_t v, int node) const {
    if (operand_of_[v] < 0) return std::nullopt;
    const size_t memory = memory_of(operand_of_[v]);
    const bool never_rests = operand_of_[memory] < 0 && !form_of(memory);
    const bool stays = is_made_[memory] && uses_[memory].back() >= node && never_rests;
    return stays ? std::optional(static_cast<int>(memory)) : std::nullopt;
  }

  // Its numbers are those of its format times the scale of their block.
  bool has_block_scales(const ProgramValue& value) const {
    if (value.scaled_cast < 0) return false;
    const auto cast = static_cast<size_t>(value.scaled_cast);
    return program_.scaled_casts[cast].to.block != nullptr;
  }

  std::optional<CompactForm> form_of(size_t v) const {
    const ProgramValue& value = program_.values[v];
    if (value.format == nullptr) {
      const bool is_mask = std::ranges::count(rules_.zeros_and_ones, static_cast<int>(v)) > 0;
      return is_mask ? std::optional(CompactForm::kBit) : std::nullopt;
    }
    if (rules_.container != Container::kF32 || has_block_scales(value)) return std::nullopt;
    return compact_form(*value.format);
  }

  // After a node, other lanes still read this lane's values, up to readers_lag nodes later. Values
  // go to rest before any comes back, and both before the node. So a compact slot is taken from a
  // node before, when the last of the others still holds its own, to the node itself.
  std::vector<Stay> find_stays() {
    std::vector<Stay> stays;
    std::vector<const ValuePlan::Rest*> rest_of(uses_.size(), nullptr);
    for (ValuePlan::Rest& rest : plan_.rests) {
      const auto v = static_cast<size_t>(rest.value);
      rest_of[v] = &rest;
      if (rest.operand < 0) {
        stays.push_back({compact_bytes(rest.form, elements(v)), rest.begins - 1, rest.ends,
                         &rest.compact_slot});
      }
      stays.push_back({bytes(v), rest.ends, last_use(v), &rest.next_slot});
    }
    for (size_t v = 0; v < uses_.size(); ++v) {
      if (!is_made_[v]) continue;
      const int to = rest_of[v] == nullptr ? last_use(v) : rest_of[v]->begins - 1;
      stays.push_back({bytes(v), uses_[v].front(), to, &plan_.slot_of[v]});
    }
    return stays;
  }

  // The smallest slot that is free for the whole stay, or a new one. Most values of a step live in
  // its middle, where Slot::full rules out most slots with one comparison.
  int choose(const Stay& stay) {
    const int first = std::max(stay.from, 0);
    const uint64_t touched = buckets(first / bucket_nodes_, stay.to / bucket_nodes_);
    const uint64_t filled =
        buckets((first + bucket_nodes_ - 1) / bucket_nodes_, (stay.to + 1) / bucket_nodes_ - 1);
    for (size_t s = slots_.size(); s-- > 0;) {
      auto& [full, stays] = slots_[s];
      if ((full & touched) != 0) continue;
      const auto after = stays.upper_bound(stay.to);  // begins after it
      if (after != stays.begin() && std::prev(after)->second >= stay.from) continue;
      full |= filled;
      stays.emplace(stay.from, stay.to);
      return static_cast<int>(s);
    }
    plan_.slots.push_back(stay.bytes);
    slots_.push_back({filled, {{stay.from, stay.to}}});
    return static_cast<int>(slots_.size()) - 1;
  }

  // The bits first..last, which may be none.
  static uint64_t buckets(int first, int last) {
    last = std::min(last, kBuckets - 1);
    if (first > last) return 0;
    const uint64_t up_to_last = ~uint64_t{0} >> (kBuckets - 1 - last);
    return up_to_last >> first << first;
  }

  int last_use(size_t v) const {
    const int last = uses_[v].back();
    return last == kForever ? kForever : last + lag_;
  }
  int64_t elements(size_t v) const { return element_count(program_.values[v].type.shape); }
  int64_t bytes(size_t v) const {
    const bool is_int = program_.values[v].type.element == ElementType::kInt;
    return elements(v) *
           static_cast<int64_t>(bytes_of(is_int ? Container::kI32 : rules_.container));
  }

  const Program& program_;
  const PlanRules& rules_;
  int lag_;
  ValuePlan plan_;
  std::vector<std::vector<int>> uses_;  // by value: nodes; the one that makes it is the first
  std::vector<bool> is_made_;           // by value, in memory of its own
  std::vector<int> operand_of_;         // by value: whose cast it is, or -1
  static constexpr int kBuckets = 64;   // of consecutive nodes
  int bucket_nodes_;
  struct Slot {
    uint64_t full;             // by bucket: one stay fills it
    std::map<int, int> stays;  // from and to, apart from each other
  };
  std::vector<Slot> slots_;
};

}  // namespace

int64_t ValuePlan::bytes() const {
  return std::reduce(slots.begin(), slots.end());
}

ValuePlan plan_values(const Program& program, const PlanRules& rules) {
  Planner planner(program, rules);
  if (rules.may_rest) planner.find_rests();
  return planner.plan();
}

}  // namespace lockstep

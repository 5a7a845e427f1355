// The values of a program.
// Holds the tensors of one lane: those bound from outside, the constants, and the computed ones in
// the slots of a ValuePlan, from which they go to rest and come back. It runs no node and measures
// nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/tensor.h"
#include "src/execute/execution_rules.h"
#include "src/execute/value_plan.h"
#include "src/graph/ir.h"
#include "src/lower/program.h"

namespace lockstep {

class ValueStore {
 public:
  // All must outlive the store. Throws: InputError for a constant without data.
  ValueStore(const Graph& graph, const Program& program, const ExecutionRules& rules);
  ValueStore(const ValueStore&) = delete;  // constants are bound by address
  ValueStore& operator=(const ValueStore&) = delete;

  // Binds an input, parameter, buffer or the loss seed; not owned. The tensor must hold values of
  // external_format() in the lane's container (kI32 for integers).
  // Throws: std::logic_error on a wrong id, size or container.
  void bind(std::string_view id, const Tensor& tensor);
  int external(std::string_view id) const { return program_.external.at(std::string(id)); }
  const Format* external_format(std::string_view id) const;

  // A value of the graph as its producer wrote it. Results (loss, outputs, gradients, mutations)
  // live until the next step, others until the node after their last use, or readers_lag nodes
  // more. Those that rest (value_plan.h) cannot be read.
  const Tensor& of(std::string_view id) const;
  // For changing a value between two nodes, after its producer has run.
  // Throws: std::logic_error without ExecutionRules::in_place.
  Tensor& mutable_of(std::string_view id);
  bool share_memory(std::string_view a, std::string_view b) const;  // values of the graph

  // By program value.
  const Tensor& at(int value) const;
  Tensor& writable(int value);  // where it is, or where it is made
  // Whether it is a copy in its operand's memory: then share() replaces the op that makes it.
  bool is_shared(int value) const { return plan_.original_of[static_cast<size_t>(value)] >= 0; }
  void share(int value);
  // By which a scaled cast has multiplied the value; 1 for all others.
  float scale(int value) const { return scales_[static_cast<size_t>(value)]; }
  void set_scale(int value, float scale) { scales_[static_cast<size_t>(value)] = scale; }
  double product_of_scales(std::span<const int> values) const;
  // The buffer whose new value it is, as program value, or -1.
  int old_of(int value) const { return old_of_[static_cast<size_t>(value)]; }
  // The program value of the mask that a node draws, or -1.
  int mask_of(size_t node) const { return mask_of_[node]; }

  void begin_step();  // nothing is computed yet
  // Moves values to and from rest before the node runs. `cast_again` rounds an operand once more.
  using CastAgain = std::function<void(const Instruction& cast, const Tensor& x, Tensor& y)>;
  void rest_and_wake(int node, const CastAgain& cast_again);

  // The memory of all computed values of a step.
  int64_t bytes() const { return plan_.bytes(); }
  // The part of it that the gradients of parameters fill until the step ends.
  int64_t gradient_bytes() const;
  // Releases that memory; bound values stay.
  void forget();

 private:
  void find_values();
  void find_masks();
  void find_buffer_updates();
  void bind_constants();
  PlanRules plan_rules();
  void plan_memory();
  bool is_copy(const Instruction& instruction) const;
  uint8_t* slot(int number);  // its memory, allocated on first use
  Tensor& place(int value, int number);
  Tensor& place_at(int value, void* memory);

  const Graph& graph_;
  const Program& program_;
  const ExecutionRules& rules_;
  std::map<std::string, int, std::less<>> value_of_;  // graph value -> its first program value
  std::vector<const Tensor*> external_;               // by program value, null: in a slot
  std::vector<Tensor> constants_;                     // as in the graph, in the lane's formats
  std::vector<int> mask_of_, old_of_;
  ValuePlan plan_;
  std::vector<Tensor> slots_;                // allocated when first written
  std::vector<Tensor> values_;               // by program value: in slots; empty: nowhere
  std::vector<float> scales_;                // by program value
  std::vector<std::vector<int>> copies_of_;  // by program value: those that share its memory
  std::vector<int> cast_of_;                 // by program value: the index of the instruction, if
                                             // that is a plain cast, or -1
  std::vector<std::vector<size_t>> rests_from_, rests_to_;  // by node before which they begin, end
};

}  // namespace lockstep

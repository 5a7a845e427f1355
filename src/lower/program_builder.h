// Builds a program instruction by instruction.
// Records which program value holds which graph value, makes each cast once, and attaches every
// operand site to the instruction that measures it. Knows nothing of policies.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "src/graph/site.h"
#include "src/lower/program.h"
#include "src/policy/policy.h"

namespace lockstep {

class ProgramBuilder {
 public:
  // Instructions added from now on belong to this node.
  void start_node(size_t index) { node_ = static_cast<int>(index); }

  int add_value(const std::string& id, const TensorType& type, const Format* format);
  void add_external(const std::string& id, const TensorType& type, const Format* format);
  void set_format(int value, const Format* format) { program_.values[value].format = format; }
  // Null for integers.
  const Format* format_of(int value) const { return program_.values[value].format; }

  // The program value that holds a graph value before any cast.
  bool has(const std::string& id) const { return stored_.contains(id); }
  int stored(const std::string& id) const { return stored_.at(id); }
  const Format* stored_format(const std::string& id) const { return format_of(stored(id)); }

  // The program value to read for `value` in `target` (null: no cast): a cast, made now or before,
  // unless `target` holds every value of its format anyway. `site` is the operand's (-1: none); it
  // joins the sites of the instruction that measures the value read.
  // `unmeasured_key`: see ValueRounding.
  int read(int value, const Format* target, Rounding rounding, int32_t site,
           int32_t unmeasured_key = 0);

  // The program value that holds `value` times a power of two, rounded to `format`.
  int rescale(int value, double factor, const Format* format);
  // The value to read if `value` is a scaled operand: a scaled cast, made now or before.
  int read_scaled(int value, const ScaledCast& cast, int32_t site);

  // Adds the op; `roundings` has one entry per output of `node`, whose values it stores.
  Instruction& add_op(const Node& node, std::vector<int> inputs,
                      std::vector<ValueRounding> roundings);

  Program& program() { return program_; }

 private:
  std::pair<int, Instruction*> add_instruction(InstructionKind kind);
  void observe(int value, int32_t site);

  Program program_;
  int node_ = 0;
  std::map<std::string, int> stored_;
  std::map<std::tuple<int, const Format*, Rounding>, int> casts_;   // -> instruction
  std::map<std::tuple<int, double, const Format*>, int> rescaled_;  // -> program value
  // Its value and the fields that ScaledCast::sameness compares -> instruction.
  std::map<std::pair<int, decltype(ScaledCast().sameness())>, int> scaled_casts_;
  std::map<int, int> measured_by_;  // program value -> its cast or observe instruction
};

}  // namespace lockstep

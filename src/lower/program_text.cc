// The output of `lockstep explain`: the program as a table, one block of lines per op. Every
// operand shows the format in which the op reads it, and the cast that made it; a cast made at an
// earlier op names that op.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "src/core/text.h"
#include "src/graph/op.h"
#include "src/lower/product_recipe.h"
#include "src/lower/program_text.h"

namespace lockstep {
namespace {

constexpr size_t kColumns = 7;
using Row = std::array<std::string, kColumns>;
constexpr std::array<std::string_view, kColumns> kHeadings = {
    "#", "layer", "op", "operand", "read as", "sum of products", "result"};
// Between columns. The first column is right-aligned, the others are left-aligned.
constexpr std::string_view kGap = "  ";

class ProgramText {
 public:
  ProgramText(const Program& program, const Graph& graph, const SiteTable& sites)
      : program_(program), graph_(graph), sites_(sites) {
    for (const Instruction& i : program.instructions) {
      if (i.kind == InstructionKind::kCast) cast_of_[i.outputs[0]] = &i;
    }
  }

  std::string text() {
    rows_.emplace_back();
    std::copy(kHeadings.begin(), kHeadings.end(), rows_.back().begin());
    bool backward = false;
    for (const Instruction& i : program_.instructions) {
      if (i.kind != InstructionKind::kOp) continue;
      const Node& node = graph_.nodes[i.node];
      if (node.is_backward() && !backward) {
        backward = true;
        rows_.emplace_back();
        rows_.back()[1] = "backward";
      }
      add_op(i, node);
    }
    const std::string recipes = recipe_table(product_recipes(program_, graph_));
    return summary() + "\n" + (recipes.empty() ? "" : recipes + "\n") + table();
  }

 private:
  static std::string format_name(const Format* format) {
    return format != nullptr ? format->name : "int";
  }

  // "conv1.weight" for p:conv1.weight, "images" for in0, otherwise the id.
  std::string value_name(const std::string& id) const {
    if (id.starts_with("p:") || id.starts_with("b:")) return id.substr(2);
    for (const GraphInput& input : graph_.inputs) {
      if (input.id == id && !input.path.empty()) return input.path;
    }
    return id;
  }

  std::string read_as(int value, int node) const {
    const auto cast = cast_of_.find(value);
    const ScaledCast* scaled = scaled_cast(value);
    const std::string format =
        scaled != nullptr ? scaled->to.name() : format_name(program_.values[value].format);
    if (cast == cast_of_.end()) return format;
    const Instruction& made = *cast->second;
    if (made.node != node) return fmt::format("{} (cast at {})", format, made.node);
    const std::string factor = made.factor != 1 ? fmt::format(" x {}", made.factor) : "";
    const std::string text = fmt::format("{}{} -> {} {}", source_of(made), factor, format,
                                         to_string(made.roundings[0].rounding));
    return scaled != nullptr ? text + ", " + scaled->text() : text;
  }
  // The scaled cast that made a value, or null.
  const ScaledCast* scaled_cast(int value) const {
    const int place = program_.values[value].scaled_cast;
    return place < 0 ? nullptr : &program_.scaled_casts[static_cast<size_t>(place)];
  }
  // The format a cast starts from, and the factor if a layer's own loss scale comes first.
  std::string source_of(const Instruction& cast) const {
    const int source = cast.inputs[0];
    const auto before = cast_of_.find(source);
    const std::string format = format_name(program_.values[source].format);
    if (before == cast_of_.end() || before->second->factor == 1) return format;
    return fmt::format("{} x {}", format, before->second->factor);
  }

  // Set if the accumulator reads a factor in a format other than its value's: a BF16 value in a
  // TF32 unit, an FP16 value that an FP32 op reads without a cast.
  std::string factor_as(const Instruction& i, size_t input) const {
    const Format* factor = input < i.factor_formats.size() ? i.factor_formats[input] : nullptr;
    const Format* format = program_.values[i.inputs[input]].format;
    if (factor == nullptr || format == nullptr || scaled_cast(i.inputs[input]) != nullptr) {
      return "";
    }
    const bool same_encoding =
        factor->precision == format->precision && factor->emin == format->emin;
    return same_encoding ? "" : ", as " + factor->name;
  }

  std::string result(const Instruction& i, const Node& node, size_t k) const {
    const ValueRounding& rounding = i.roundings[k];
    std::string text = output_id(node, k) + " " + format_name(rounding.format);
    if (rounding.rounding != Rounding::kNearestEven && rounding.format != nullptr) {
      text += " " + std::string(to_string(rounding.rounding));
    }
    if (k < node.gradient_of.size() && !node.gradient_of[k].empty()) {
      text += " = gradient of " + value_name(node.gradient_of[k]);
    }
    return text;
  }

  void add_op(const Instruction& i, const Node& node) {
    const bool is_gemm = find_op(node.op).sums.of_products;
    for (size_t line = 0; line < std::max(i.inputs.size(), i.outputs.size()); ++line) {
      Row row;
      if (line == 0) {
        row[0] = std::to_string(i.node);
        row[1] = node.layer;
        row[2] = node.op;
        if (const Format* inside = format_inside(i)) row[2] += " (" + inside->name + " inside)";
        if (is_gemm) row[5] = i.gemm_accumulator->name;
      }
      if (line < i.inputs.size()) {
        row[3] = value_name(node.inputs[line]);
        row[4] = read_as(i.inputs[line], i.node) + factor_as(i, line);
      }
      if (line < i.outputs.size()) row[6] = result(i, node, line);
      rows_.push_back(std::move(row));
    }
  }

  std::string summary() const {
    size_t op_count = 0, observe_count = 0;
    std::set<std::string> sums;
    std::map<std::string, size_t> casts;
    for (const Instruction& i : program_.instructions) {
      if (i.kind == InstructionKind::kObserve) ++observe_count;
      if (i.kind == InstructionKind::kCast) {
        ++casts[format_name(program_.values[i.inputs[0]].format) + " -> " +
                (i.scaled_cast < 0 ? format_name(i.roundings[0].format)
                                   : scaled_cast(i.outputs[0])->to.name())];
      }
      if (i.kind != InstructionKind::kOp) continue;
      ++op_count;
      sums.insert(i.reduce_accumulator->name);
    }
    std::vector<std::string> cast_text;
    for (const auto& [kind, count] : casts) cast_text.push_back(fmt::format("{} {}", count, kind));
    return fmt::format(
        "{}: {} ops, casts: {}, {} values observed without a cast, {} sites\n"
        "sums without products: {}\n{}",
        graph_.name, op_count, cast_text.empty() ? "none" : join(cast_text, ", "), observe_count,
        sites_.sites.size(), join({sums.begin(), sums.end()}, ", "), library_text());
  }

  // What [cuda] of the policy says, or "".
  std::string library_text() const {
    std::set<std::string> rules;
    const LibraryRules defaults;
    for (const Instruction& i : program_.instructions) {
      if (i.gemm_accumulator == nullptr) continue;
      const LibraryRules& own = i.gemm_accumulator->library;
      if (!own.splits_k) rules.insert("no split-K");
      if (own.narrow_results) rules.insert("results in the factors' format");
      if (own.narrow_results && !own.adds_parts_narrow) rules.insert("parts added in FP32");
      if (own.workspace_bytes != defaults.workspace_bytes) {
        rules.insert(fmt::format("{} MiB of workspace", own.workspace_bytes >> 20));
      }
    }
    return rules.empty()
               ? ""
               : fmt::format("cuBLAS, @cuda: {}\n", join({rules.begin(), rules.end()}, ", "));
  }

  std::string table() const {
    std::array<size_t, kColumns> widths{};
    for (const Row& row : rows_) {
      for (size_t c = 0; c < kColumns; ++c) widths[c] = std::max(widths[c], row[c].size());
    }
    std::string text;
    for (const Row& row : rows_) {
      std::string line = fmt::format("{:>{}}", row[0], widths[0]);
      for (size_t c = 1; c < kColumns; ++c) {
        line += fmt::format("{}{:<{}}", kGap, row[c], widths[c]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    return text;
  }

  const Program& program_;
  const Graph& graph_;
  const SiteTable& sites_;
  std::map<int, const Instruction*> cast_of_;  // program value -> the cast that made it
  std::vector<Row> rows_;
};

}  // namespace

std::string to_text(const Program& program, const Graph& step, const SiteTable& sites) {
  return ProgramText(program, step, sites).text();
}

}  // namespace lockstep

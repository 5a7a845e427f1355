// greater, less, ...: masks made by comparing two values, for where and masked_fill.
// No gradient flows through them. Each lane compares its own numbers: where the activations of two
// lanes lie on different sides of a border, their masks differ.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/relation.h"

namespace lockstep {
namespace {

struct Row {
  std::string_view name;
  Relation relation;
  std::string_view help, source;
};
constexpr Row kRows[] = {
    {.name = "greater",
     .relation = Relation::kGreater,
     .help = "mask = 1 where a > b, else 0; shapes broadcast; b may be the number `scalar`",
     .source = "torch.gt; CUDA autocast: not listed, type promotion decides"},
    {.name = "greater_equal",
     .relation = Relation::kGreaterEqual,
     .help = "mask = 1 where a >= b, else 0; shapes as in greater",
     .source = "torch.ge; CUDA autocast: not listed, type promotion decides"},
    {.name = "less",
     .relation = Relation::kLess,
     .help = "mask = 1 where a < b, else 0; shapes as in greater",
     .source = "torch.lt; CUDA autocast: not listed, type promotion decides"},
    {.name = "less_equal",
     .relation = Relation::kLessEqual,
     .help = "mask = 1 where a <= b, else 0; shapes as in greater",
     .source = "torch.le; CUDA autocast: not listed, type promotion decides"},
    {.name = "equal",
     .relation = Relation::kEqual,
     .help = "mask = 1 where a = b, else 0; shapes as in greater",
     .source = "torch.eq; CUDA autocast: not listed, type promotion decides"},
    {.name = "not_equal",
     .relation = Relation::kNotEqual,
     .help = "mask = 1 where a != b (always for NaN), else 0; shapes as in greater",
     .source = "torch.ne; CUDA autocast: not listed, type promotion decides"},
};

std::vector<TensorType> infer(const Node& node, std::span<const TensorType> inputs) {
  return {{infer_binary(node, inputs)[0].shape, ElementType::kInt}};
}

template <typename T>
void run_in(const OpCall& call) {
  const Shape& shape = output_shape(call, 0);
  std::vector<T> a_storage, b_storage;
  const T* a = expand(call.kernels, input<T>(call, 0), input_shape(call, 0), shape, a_storage);
  const T number = static_cast<T>(number_of(call, "scalar", 0));
  const T* b = has_scalar(call.node) ? expand(call.kernels, &number, Shape{}, shape, b_storage)
                                     : expand(call.kernels, input<T>(call, 1), input_shape(call, 1),
                                              shape, b_storage);
  call.kernels.of<T>().comparison(find_relation(call.node.op).value(), a, b,
                                  output<int32_t>(call, 0), element_count(shape));
}

void run(const OpCall& call) {  // the output is an integer tensor, so the type is the operand's
  call.inputs[0]->container() == Container::kF64 ? run_in<double>(call) : run_in<float>(call);
}

}  // namespace

std::optional<Relation> find_relation(std::string_view op) {
  for (const Row& row : kRows) {
    if (row.name == op) return row.relation;
  }
  return std::nullopt;
}

std::vector<OpDef> compare_ops() {
  std::vector<OpDef> rows;
  for (const Row& row : kRows) {
    rows.push_back({.name = row.name,
                    .help = row.help,
                    .source = row.source,
                    .min_inputs = 1,
                    .max_inputs = 2,
                    .attributes = {"scalar"},
                    .infer = infer,
                    .run = run,
                    .differentiable_outputs = 0,
                    .formats = {.on_cpu = read_numbers_rounded, .integer_bytes = 1}});
  }
  return rows;
}

}  // namespace lockstep

// decision: what a step chose by its values (the experts of a router, an order, a side of a
// border), recorded by the capture. Lanes follow it, and count where their own values would have
// chosen otherwise. Equal values choose what was recorded, and are counted.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "emulation/stats/decision_stats.h"
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/choice.h"
#include "src/graph/ops/movement.h"
#include "src/graph/ops/relation.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

// The attribute `by`: the name of a comparison, or which elements of a row the recorded places
// name.
enum class By : uint8_t {
  kLargest,     // the k largest, k the number of places
  kSmallest,    // the k smallest
  kDescending,  // all or the first k, in this order
  kAscending,
  kRank,  // the element with `rank` smaller ones, from 0
};
constexpr std::string_view kNames[] = {"largest", "smallest", "descending", "ascending", "rank"};

std::optional<Relation> comparison_of(const Node& node) {
  return find_relation(string_attribute(node, "by", ""));
}

std::vector<TensorType> infer(const Node& node, std::span<const TensorType> inputs) {
  const size_t recorded = inputs.size() - 1;
  require_float(node, inputs, 0);
  require_int(node, inputs, recorded);
  const Shape& shape = inputs[recorded].shape;
  if (comparison_of(node)) {
    const bool has_number = node.attributes.contains("scalar");
    require_operand_count(node, inputs, has_number ? 2 : 3, " (x, y unless `scalar`, recorded)");
    if (!has_number) require_float(node, inputs, 1);
    for (size_t i = 0; i < recorded; ++i) {
      require(broadcasts_to(inputs[i].shape, shape), node,
              "operand " + std::to_string(i) + " is " + to_string(inputs[i].shape) +
                  ", must broadcast to " + to_string(shape) + ", the recorded decisions");
    }
    return {{shape, ElementType::kInt}};
  }
  choice_attribute(node, "by", kNames);
  require_operand_count(node, inputs, 2, " (x, recorded)");
  const Shape& x = inputs[0].shape;
  const auto dim = static_cast<size_t>(single_dim(node, x, -1));
  bool fits = shape.size() == x.size();
  for (size_t d = 0; fits && d < x.size(); ++d) {
    fits = d == dim ? shape[d] >= 1 && shape[d] <= x[d] : shape[d] == x[d];
  }
  require(fits, node,
          "the recorded places are " + to_string(shape) + ", must have the extents of x " +
              to_string(x) + ", or fewer along dimension " + std::to_string(dim));
  const int64_t rank = int_attribute(node, "rank", 0);
  require(rank >= 0 && rank < x[dim], node,
          "rank is " + std::to_string(rank) + ", must be in [0, " + std::to_string(x[dim]) + ")");
  return {{shape, ElementType::kInt}};
}

void count_flip(DecisionStats& stats, double margin) {
  ++stats.flipped;
  if (!std::isfinite(margin)) return;
  stats.margin_max = std::max(stats.margin_max, margin);
  stats.margin_sum += margin;
}

template <typename T>
DecisionStats run_comparison(const OpCall& call, Relation relation) {
  const size_t recorded = call.inputs.size() - 1;
  const Shape& shape = output_shape(call, 0);
  std::vector<T> a_storage, b_storage;
  const T number = static_cast<T>(double_attribute(call.node, "scalar", 0));
  const T* x = expand(call.kernels, input<T>(call, 0), input_shape(call, 0), shape, a_storage);
  const T* y = recorded == 1 ? expand(call.kernels, &number, Shape{}, shape, b_storage)
                             : expand(call.kernels, input<T>(call, 1), input_shape(call, 1), shape,
                                      b_storage);
  const int32_t* given = input<int32_t>(call, recorded);
  int32_t* out = output<int32_t>(call, 0);
  const int64_t count = element_count(shape);
  call.kernels.of<T>().comparison(relation, x, y, out, count);
  DecisionStats stats;
  stats.count = static_cast<uint64_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    if (out[i] != (given[i] != 0 ? 1 : 0)) {
      count_flip(stats, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    }
  }
  if (!call.decides_itself) std::copy_n(given, count, out);
  return stats;
}

// One row of n values and the k places that were recorded for it.
template <typename T>
class RowDecision {
 public:
  RowDecision(By by, int64_t rank, int64_t n)
      : by_(by), rank_(rank), order_(static_cast<size_t>(n)), position_(order_.size()) {}

  // Writes the row's own places: the recorded ones, unless the values choose others.
  void decide(const T* x, const int32_t* given, size_t k, int32_t* own, DecisionStats& stats) {
    std::ranges::fill(position_, k);
    for (size_t j = 0; j < k; ++j) position_[static_cast<size_t>(given[j])] = j;
    std::iota(order_.begin(), order_.end(), 0);
    const size_t first = by_ == By::kRank ? static_cast<size_t>(rank_) : 0;
    std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(first + k),
                      order_.end(), [&](int32_t a, int32_t b) {
                        if (precedes(x[a], x[b])) return true;
                        if (precedes(x[b], x[a])) return false;
                        const auto pa = position_[size_t(a)], pb = position_[size_t(b)];
                        return pa != pb ? pa < pb : a < b;
                      });
    const bool as_set = by_ == By::kLargest || by_ == By::kSmallest;
    bool differs = false;
    stats.count += k;
    for (size_t j = 0; j < k; ++j) {
      const T chosen = x[given[j]], best = x[order_[as_set ? k - 1 : first + j]];
      // Where a set was chosen: is the recorded element worse than the last one that belongs to it?
      if (!(precedes(best, chosen) || (!as_set && precedes(chosen, best)))) continue;
      differs = true;
      count_flip(stats, std::abs(static_cast<double>(best) - static_cast<double>(chosen)));
    }
    if (!differs) stats.tied += ties(x, given, k);
    for (size_t j = 0; j < k; ++j) own[j] = differs ? order_[first + j] : given[j];
  }

 private:
  // The recorded elements whose value the best of the others has, too.
  uint64_t ties(const T* x, const int32_t* given, size_t k) const {
    if (by_ == By::kRank) return 0;
    const T* best = nullptr;
    for (size_t i = 0; i < order_.size(); ++i) {
      if (position_[i] == k && (best == nullptr || precedes(x[i], *best))) best = &x[i];
    }
    if (best == nullptr) return 0;
    return static_cast<uint64_t>(
        std::count_if(given, given + k, [&](int32_t g) { return x[g] == *best; }));
  }
  // As PyTorch sorts: NaN counts as the largest number.
  bool precedes(T a, T b) const {
    const bool falls = by_ == By::kLargest || by_ == By::kDescending;
    if (std::isnan(a) || std::isnan(b)) return falls ? !std::isnan(b) : !std::isnan(a);
    return falls ? a > b : a < b;
  }

  By by_;
  int64_t rank_;
  std::vector<int32_t> order_;
  std::vector<size_t> position_;  // by element: its place among the recorded ones, k: none
};

template <typename T>
DecisionStats run_choice(const OpCall& call) {
  const Shape &shape = input_shape(call, 0), &chosen = input_shape(call, 1);
  const int64_t dim = single_dim(call.node, shape, -1);
  const RowLayout values(shape, std::span(&dim, 1)), places(chosen, std::span(&dim, 1));
  std::vector<T> x_storage;
  std::vector<int32_t> given_storage;
  const T* x = values.gather(call.kernels, input<T>(call, 0), x_storage);
  const int32_t* given = places.gather(
      call.kernels, checked_indices(call, 1, shape[static_cast<size_t>(dim)]), given_storage);
  RowDecision<T> row(static_cast<By>(choice_attribute(call.node, "by", kNames)),
                     int_attribute(call.node, "rank", 0), values.cols);
  DecisionStats stats;
  places.write_rows(call.kernels, output<int32_t>(call, 0), [&](int32_t* own) {
    for (int64_t r = 0; r < places.rows; ++r) {
      row.decide(x + r * values.cols, given + r * places.cols, static_cast<size_t>(places.cols),
                 own + r * places.cols, stats);
    }
  });
  if (!call.decides_itself) {
    std::copy_n(input<int32_t>(call, 1), call.outputs[0]->size(), output<int32_t>(call, 0));
  }
  return stats;
}

void run(const OpCall& call) {  // the output is an integer tensor, so the type is the operand's
  const bool wide = call.inputs[0]->container() == Container::kF64;
  const auto run_in = [&]<typename T>(T*) {
    const std::optional<Relation> relation = comparison_of(call.node);
    return relation ? run_comparison<T>(call, *relation) : run_choice<T>(call);
  };
  const DecisionStats stats =
      wide ? run_in(static_cast<double*>(nullptr)) : run_in(static_cast<float*>(nullptr));
  if (call.decisions != nullptr) *call.decisions = stats;
}

}  // namespace

std::vector<OpDef> decision_ops() {
  return {{.name = "decision",
           .help =
               "the recorded integers, chosen from x along `dim` as `by` says (largest, smallest, "
               "descending, ascending, rank), or by comparing x with y or `scalar` (greater, ...); "
               "with `own` a lane may choose itself; operands x, y unless `scalar`, recorded",
           .source = "torch.topk, sort, argmax, kthvalue, gt, ...; no gradient",
           .min_inputs = 2,
           .max_inputs = 3,
           .attributes = {"by", "dim", "rank", "scalar", "own"},
           .infer = infer,
           .run = run,
           .differentiable_outputs = 0,
           .formats = {.integer_bytes = 8},
           .meaning = {.decides = true}}};
}

}  // namespace lockstep

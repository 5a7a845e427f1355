// Where a function has a kink, rounding may put a value on its other side: one sign of three
// million then changes a gradient by a percent. Forcing PyTorch's own choices on a step separates
// this from a fault.
#include "analysis/faithful/kinks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/faithful/gate_norms.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

// A value is moved across a kink only if rounding could have moved it: by at most this share of the
// tensor's largest magnitude.
constexpr float kNearKink = 1e-4F;

float largest(std::span<const float> x) {
  float most = 0;
  for (const float value : x) most = std::max(most, std::abs(value));
  return most;
}

// The choice is the side of a kink: inside the interval or not.
int64_t force_side(std::span<float> x, const PackedBits& inside, const Kink& kink) {
  const float near = kNearKink * largest(x);
  int64_t changed = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool is_inside = kink.least <= x[i] && x[i] <= kink.most;
    const bool wanted = inside.at(static_cast<int64_t>(i));
    const bool by_least = std::abs(x[i] - kink.least) < std::abs(x[i] - kink.most);
    const float bound = by_least ? kink.least : kink.most;
    if (is_inside == wanted || !(std::abs(x[i] - bound) <= near)) continue;
    constexpr float kFar = std::numeric_limits<float>::infinity();
    x[i] = wanted ? bound : std::nextafter(bound, by_least ? -kFar : kFar);
    ++changed;
  }
  return changed;
}

// The choice is the maximum's place in its plane. The output and the output of places change.
int64_t force_winner(const Tensor& x, std::span<const int32_t> winner, Tensor& y, Tensor& places) {
  const Shape& in = x.shape();
  const int64_t plane = in[in.size() - 1] * in[in.size() - 2];
  const int64_t planes = element_count(in) / plane, out = y.size() / planes;
  const float near = kNearKink * largest(x.as<float>());
  int64_t changed = 0;
  for (int64_t i = 0; i < y.size(); ++i) {
    const auto at = static_cast<size_t>(i);
    const int32_t wanted = winner[at];
    if (places.as<int32_t>()[at] == wanted || wanted < 0 || wanted >= plane) continue;
    const float value = x.as<float>()[static_cast<size_t>(i / out * plane + wanted)];
    if (!(std::abs(value - y.as<float>()[at]) <= near)) continue;
    y.as<float>()[at] = value;
    places.as<int32_t>()[at] = wanted;
    ++changed;
  }
  return changed;
}

}  // namespace

int64_t force_kinks(const Node& node, const CapturedInside& seen, ValueStore& values, bool done) {
  const OpDef& op = find_op(node.op);
  if (const Tensor* places = find_named(seen.places, node.id)) {
    if (!done || op.meaning.winner_output < 0) return 0;
    return force_winner(
        values.of(node.inputs[0]), places->as<int32_t>(), values.mutable_of(node.id),
        values.mutable_of(output_id(node, static_cast<size_t>(op.meaning.winner_output))));
  }
  const PackedBits* wanted = find_named(seen.sides, node.id);
  if (wanted == nullptr || done || op.meaning.kink == nullptr) return 0;
  if (!node.inputs[0].starts_with("n")) return 0;  // given values are the same on both sides
  const std::span<float> x = values.mutable_of(node.inputs[0]).as<float>();
  if (static_cast<int64_t>(x.size()) != element_count(wanted->shape)) return 0;
  return force_side(x, *wanted, op.meaning.kink(node));
}

}  // namespace lockstep

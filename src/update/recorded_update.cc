// See recorded_update.h.
#include "src/update/recorded_update.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace lockstep {
namespace {

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

}  // namespace

std::vector<RecordedUpdate::Element> RecordedUpdate::to_be_set(const Tensor& weight) const {
  std::vector<Element> found;
  if (weight.container() != Container::kF32) return found;
  const auto values = weight.as<float>();
  std::ranges::copy_if(inexact, std::back_inserter(found), [&](const Element& element) {
    return values[element.index] == element.before;
  });
  return found;
}

void set_elements(const std::vector<RecordedUpdate::Element>& elements, Tensor& weight) {
  for (const RecordedUpdate::Element& e : elements) weight.as<float>()[e.index] = e.after;
}

RecordedUpdate recorded_update(const Tensor& before, Tensor after) {
  RecordedUpdate update{.change = std::move(after), .inexact = {}};
  const auto old = before.as<float>();
  const auto values = update.change.as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    const float change = values[i] - old[i];
    if (!same_bits(old[i] + change, values[i])) {
      update.inexact.push_back({i, old[i], values[i]});
    }
    values[i] = change;
  }
  return update;
}

}  // namespace lockstep

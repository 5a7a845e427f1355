// Matching and encoding of boxes; see anchors.h.
#include "src/data/anchors.h"

#include <algorithm>

#include "emulation/math/exp_log.h"

namespace lockstep {
namespace {

constexpr double kMatchOverlap = 0.5;
constexpr double kCentreScale = 0.1, kSizeScale = 0.2;

}  // namespace

std::array<Box, kAnchorCount> make_anchors() {
  std::array<Box, kAnchorCount> anchors{};
  size_t next = 0;
  for (const AnchorGrid& grid : kAnchorGrids) {
    const double cell = 1.0 / static_cast<double>(grid.side);
    for (int64_t row = 0; row < grid.side; ++row) {
      for (int64_t col = 0; col < grid.side; ++col) {
        anchors[next++] = {(static_cast<double>(col) + 0.5) * cell,
                           (static_cast<double>(row) + 0.5) * cell, grid.size, grid.size};
      }
    }
  }
  return anchors;
}

double overlap(const Box& a, const Box& b) {
  const auto common = [](double ca, double wa, double cb, double wb) {
    const double low = std::max(ca - wa / 2, cb - wb / 2),
                 high = std::min(ca + wa / 2, cb + wb / 2);
    return std::max(0.0, high - low);
  };
  const double both = common(a.x, a.width, b.x, b.width) * common(a.y, a.height, b.y, b.height);
  return both / (a.width * a.height + b.width * b.height - both);
}

std::array<float, 4> encode_box(const Box& box, const Box& anchor) {
  return {static_cast<float>((box.x - anchor.x) / anchor.width / kCentreScale),
          static_cast<float>((box.y - anchor.y) / anchor.height / kCentreScale),
          static_cast<float>(lockstep_log(box.width / anchor.width) / kSizeScale),
          static_cast<float>(lockstep_log(box.height / anchor.height) / kSizeScale)};
}

AnchorTargets match_anchors(std::span<const Box> boxes, std::span<const int32_t> labels) {
  static const std::array<Box, kAnchorCount> kAnchors = make_anchors();
  AnchorTargets targets;
  const auto take = [&](size_t anchor, size_t object) {
    targets.label[anchor] = labels[object];
    targets.offset[anchor] = encode_box(boxes[object], kAnchors[anchor]);
  };
  std::array<double, kAnchorCount> best{};
  for (size_t object = 0; object < boxes.size(); ++object) {
    for (size_t anchor = 0; anchor < kAnchors.size(); ++anchor) {
      const double shared = overlap(boxes[object], kAnchors[anchor]);
      if (shared < kMatchOverlap || shared <= best[anchor]) continue;
      best[anchor] = shared;
      take(anchor, object);
    }
  }
  for (size_t object = 0; object < boxes.size(); ++object) {
    size_t nearest = 0;
    for (size_t anchor = 1; anchor < kAnchors.size(); ++anchor) {
      if (overlap(boxes[object], kAnchors[anchor]) > overlap(boxes[object], kAnchors[nearest])) {
        nearest = anchor;
      }
    }
    take(nearest, object);
  }
  return targets;
}

}  // namespace lockstep

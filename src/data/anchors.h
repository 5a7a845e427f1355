// The anchors of an SSD-like detector on square images: one per cell of two grids, and the encoding
// of a box relative to its anchor. The model's heads and the data's targets must agree on both.
// Source: W. Liu et al., "SSD: single shot multibox detector", ECCV 2016, sections 2.1 and 2.2; the
// scaling of the offsets (0.1 and 0.2) is that of its code.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace lockstep {

struct Box {
  double x, y, width, height;  // centre and extents, as fractions of the image's side
};

struct AnchorGrid {
  int64_t side;  // cells per row and column
  double size;   // of an anchor, as a fraction of the image's side
};
inline constexpr std::array<AnchorGrid, 2> kAnchorGrids = {{{8, 0.3}, {4, 0.6}}};
inline constexpr int64_t kAnchorCount = 8 * 8 + 4 * 4;

// In the targets' order: grid by grid, row by row.
std::array<Box, kAnchorCount> make_anchors();

// Intersection over union of two boxes.
double overlap(const Box& a, const Box& b);

// ((x - xa) / wa / 0.1, (y - ya) / ha / 0.1, log(w / wa) / 0.2, log(h / ha) / 0.2)
std::array<float, 4> encode_box(const Box& box, const Box& anchor);

struct AnchorTargets {
  std::array<int32_t, kAnchorCount> label{};  // 0: background
  std::array<std::array<float, 4>, kAnchorCount> offset{};
};
// An anchor gets the object that it overlaps most, if by at least half; every object's best anchor
// gets that object. `labels` are 1-based classes, one per box.
AnchorTargets match_anchors(std::span<const Box> boxes, std::span<const int32_t> labels);

}  // namespace lockstep

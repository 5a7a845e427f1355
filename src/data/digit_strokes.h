// The strokes of the synthetic digits: a table of glyphs. Every digit has one or more variants,
// each a few strokes through points in a box of 1x1, x to the right, y downwards. Knows nothing of
// pixels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

struct Point2 {
  double x, y;
};

enum class StrokeKind : uint8_t {
  kLines,  // straight from point to point
  kCurve,  // a Catmull-Rom spline through the points
  kLoop,   // the same, closed
};

struct Stroke {
  StrokeKind kind;
  std::vector<Point2> points;
};

struct Glyph {
  int digit;
  std::vector<Stroke> strokes;
};

// All glyphs, by ascending digit; every digit has at least one.
std::span<const Glyph> glyphs();
// The variants of one digit. Requires: 0 <= digit <= 9 (std::logic_error otherwise).
std::span<const Glyph> glyphs_of(int digit);

// A stroke as points joined by straight lines; a curve has `steps` lines between two points.
std::vector<Point2> flatten_stroke(const Stroke& stroke, int steps);

}  // namespace lockstep

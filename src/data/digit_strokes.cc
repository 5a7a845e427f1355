// The glyph table and its splines.
// Source of the spline: E. Catmull, R. Rom, "A class of local interpolating splines", 1974
// (uniform, tension 1/2).
#include "src/data/digit_strokes.h"

#include <stdexcept>
#include <string>

namespace lockstep {
namespace {

constexpr StrokeKind kLines = StrokeKind::kLines;
constexpr StrokeKind kCurve = StrokeKind::kCurve;
constexpr StrokeKind kLoop = StrokeKind::kLoop;

// clang-format off
const std::vector<Glyph>& glyph_table() {
  static const std::vector<Glyph> kGlyphs = {
    // round; narrow
    {0, {{kLoop, {{.50, .00}, {.80, .15}, {.88, .50}, {.80, .85}, {.50, 1.0}, {.20, .85}, {.12, .50}, {.20, .15}}}}},
    {0, {{kLoop, {{.52, .00}, {.70, .18}, {.73, .50}, {.66, .84}, {.47, 1.0}, {.30, .82}, {.26, .50}, {.33, .16}}}}},
    // a bar; with a flag; with flag and foot
    {1, {{kLines, {{.50, .00}, {.50, 1.0}}}}},
    {1, {{kLines, {{.28, .24}, {.54, .00}, {.54, 1.0}}}}},
    {1, {{kLines, {{.30, .22}, {.52, .00}, {.52, 1.0}}}, {kLines, {{.26, 1.0}, {.78, 1.0}}}}},
    // straight foot; looped foot
    {2, {{kCurve, {{.18, .26}, {.30, .06}, {.55, .00}, {.78, .13}, {.79, .36}, {.60, .62}, {.35, .84}, {.15, 1.0}}},
         {kLines, {{.15, 1.0}, {.86, .97}}}}},
    {2, {{kCurve, {{.20, .20}, {.46, .00}, {.75, .15}, {.71, .45}, {.46, .80}, {.22, .96}, {.14, .82}, {.34, .77}, {.60, .94}, {.88, .93}}}}},
    // round; flat top
    {3, {{kCurve, {{.20, .10}, {.48, .00}, {.76, .14}, {.70, .37}, {.44, .47}}},
         {kCurve, {{.44, .47}, {.77, .58}, {.82, .80}, {.54, 1.0}, {.17, .89}}}}},
    {3, {{kLines, {{.20, .02}, {.78, .02}, {.45, .40}}},
         {kCurve, {{.45, .40}, {.78, .54}, {.80, .84}, {.50, 1.0}, {.17, .90}}}}},
    // open; closed
    {4, {{kLines, {{.30, .00}, {.15, .60}, {.87, .56}}}, {kLines, {{.68, .16}, {.64, 1.0}}}}},
    {4, {{kLines, {{.64, 1.0}, {.64, .00}, {.12, .66}, {.90, .66}}}}},
    // angular; in one curve
    {5, {{kLines, {{.80, .02}, {.28, .02}, {.24, .42}}},
         {kCurve, {{.24, .42}, {.55, .36}, {.82, .56}, {.78, .86}, {.48, 1.0}, {.16, .90}}}}},
    {5, {{kCurve, {{.78, .00}, {.42, .06}, {.26, .30}, {.44, .42}, {.72, .54}, {.74, .84}, {.46, 1.0}, {.16, .92}}}}},
    // slanted back; upright back
    {6, {{kCurve, {{.74, .02}, {.42, .20}, {.22, .56}, {.26, .86}, {.50, 1.0}, {.75, .86}, {.74, .63}, {.50, .51}, {.26, .68}}}}},
    {6, {{kCurve, {{.40, .00}, {.26, .35}, {.24, .75}, {.46, 1.0}, {.72, .88}, {.70, .62}, {.48, .54}, {.27, .70}}}}},
    // plain; with a bar; with a hook
    {7, {{kLines, {{.14, .04}, {.85, .04}, {.42, 1.0}}}}},
    {7, {{kLines, {{.14, .04}, {.84, .03}, {.42, 1.0}}}, {kLines, {{.34, .52}, {.80, .50}}}}},
    {7, {{kLines, {{.15, .22}, {.17, .04}, {.84, .04}}}, {kCurve, {{.84, .04}, {.60, .40}, {.50, .70}, {.48, 1.0}}}}},
    // two loops; one crossing curve
    {8, {{kLoop, {{.50, .00}, {.72, .10}, {.72, .36}, {.50, .47}, {.28, .36}, {.28, .10}}},
         {kLoop, {{.50, .47}, {.77, .60}, {.79, .86}, {.50, 1.0}, {.21, .86}, {.23, .60}}}}},
    {8, {{kLoop, {{.74, .12}, {.50, .00}, {.26, .14}, {.36, .38}, {.68, .62}, {.76, .86}, {.50, 1.0}, {.24, .86}, {.32, .62}, {.64, .38}}}}},
    // slanted tail; straight tail; hooked tail
    {9, {{kLoop, {{.50, .00}, {.74, .12}, {.76, .36}, {.52, .50}, {.28, .38}, {.27, .12}}},
         {kCurve, {{.76, .26}, {.71, .65}, {.58, 1.0}}}}},
    {9, {{kLoop, {{.48, .02}, {.72, .14}, {.72, .38}, {.48, .50}, {.26, .38}, {.25, .14}}},
         {kLines, {{.73, .02}, {.73, 1.0}}}}},
    {9, {{kLoop, {{.50, .00}, {.75, .12}, {.76, .36}, {.52, .48}, {.28, .37}, {.27, .12}}},
         {kCurve, {{.76, .24}, {.79, .68}, {.62, .98}, {.28, .93}}}}},
  };
  return kGlyphs;
}
// clang-format on

// The spline between b and c, t in 0..1; a and d are the points before and after.
Point2 catmull_rom(Point2 a, Point2 b, Point2 c, Point2 d, double t) {
  const auto blend = [t](double p0, double p1, double p2, double p3) {
    return 0.5 * (2 * p1 + (p2 - p0) * t + (2 * p0 - 5 * p1 + 4 * p2 - p3) * (t * t) +
                  (3 * p1 - p0 - 3 * p2 + p3) * (t * t * t));
  };
  return {blend(a.x, b.x, c.x, d.x), blend(a.y, b.y, c.y, d.y)};
}

}  // namespace

std::span<const Glyph> glyphs() {
  return glyph_table();
}

std::span<const Glyph> glyphs_of(int digit) {
  const std::span<const Glyph> all = glyphs();
  size_t begin = 0;
  while (begin < all.size() && all[begin].digit != digit) ++begin;
  size_t end = begin;
  while (end < all.size() && all[end].digit == digit) ++end;
  if (begin == end) throw std::logic_error("no glyph for digit " + std::to_string(digit));
  return all.subspan(begin, end - begin);
}

std::vector<Point2> flatten_stroke(const Stroke& stroke, int steps) {
  if (stroke.kind == kLines) return stroke.points;
  const bool closed = stroke.kind == kLoop;
  const int count = static_cast<int>(stroke.points.size());
  // The end point of an open curve is repeated.
  const auto at = [&](int i) {
    const int index = closed ? (i + count) % count : (i < 0 ? 0 : i >= count ? count - 1 : i);
    return stroke.points[static_cast<size_t>(index)];
  };
  std::vector<Point2> flat = {at(0)};
  const int pieces = closed ? count : count - 1;
  for (int i = 0; i < pieces; ++i) {
    for (int step = 1; step <= steps; ++step) {
      const double t = static_cast<double>(step) / steps;
      flat.push_back(catmull_rom(at(i - 1), at(i), at(i + 1), at(i + 2), t));
    }
  }
  return flat;
}

}  // namespace lockstep

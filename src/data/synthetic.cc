// The synthetic digits: a data set that needs no file, drawn from strokes with varied handwriting.
// Example i is a pure function of (seed, i): digit, variant, pen, position and noise come from one
// counter stream each. Only + - * / and sqrt are used, so every machine draws the same bits.
//
//   glyph points  + jitter of each     box 1x1
//   -> shear, rotate, scale, shift     pixels of 28x28
//   -> ink = pen strength * clamp(half width + 1/2 - distance to the strokes, 0, 1)
//   -> + stray marks, + noise, clamped to 0..1, rounded to 8 bits
#include <algorithm>
#include <array>
#include <cmath>

#include "src/core/parallel.h"
#include "src/data/digit_strokes.h"
#include "src/data/draws.h"
#include "src/data/image_set.h"
#include "src/data/sources.h"

namespace lockstep {
namespace {

constexpr int kSide = 28;
constexpr int kPixels = kSide * kSide;
constexpr int kClasses = 10;
constexpr int64_t kDefaultCount = 10000;
// At least one held-out example per class on average; at most 784 MB of pixels.
constexpr int64_t kMinCount = 50, kMaxCount = 1'000'000;

// Mean and standard deviation of the pixels in 0..1 of the default set with seed 1, to four digits
// (tests/data/test_data.cc recounts them).
constexpr float kMean = 0.1195f, kStd = 0.2391f;

// How far handwriting may vary; lengths are in pixels unless noted.
constexpr double kGlyphHeight = 19;
constexpr double kPointJitter = 0.045;  // of the glyph box, each coordinate
constexpr double kTilt = 0.14;          // t of the rotation below: about 16 degrees
constexpr double kShear = 0.25;
constexpr double kShift = 2.5;
constexpr double kMinHalfWidth = 0.7, kMaxHalfWidth = 1.7;
constexpr double kMinInk = 0.55;
constexpr double kMaxNoise = 0.25;  // amplitude of the grain, of full ink
constexpr int kCurveSteps = 4;      // straight pieces between two points of a curve

using Canvas = std::array<double, kPixels>;  // ink, 0..1

double distance_to_segment(Point2 p, Point2 a, Point2 b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double length_sq = dx * dx + dy * dy;
  double t = length_sq > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length_sq : 0;
  t = std::clamp(t, 0.0, 1.0);
  const double ex = p.x - (a.x + t * dx), ey = p.y - (a.y + t * dy);
  return std::sqrt(ex * ex + ey * ey);
}

// Only the pixels that the pen can touch are visited.
void draw_segment(Canvas& canvas, Point2 a, Point2 b, double half_width, double ink) {
  const double reach = half_width + 0.5;
  const auto pixel = [](double x) { return std::clamp(static_cast<int>(x), 0, kSide); };
  const int x_begin = pixel(std::min(a.x, b.x) - reach),
            x_end = pixel(std::max(a.x, b.x) + reach + 1);
  const int y_begin = pixel(std::min(a.y, b.y) - reach),
            y_end = pixel(std::max(a.y, b.y) + reach + 1);
  for (int y = y_begin; y < y_end; ++y) {
    for (int x = x_begin; x < x_end; ++x) {
      const double d = distance_to_segment({x + 0.5, y + 0.5}, a, b);
      const double cover = ink * std::clamp(reach - d, 0.0, 1.0);
      double& value = canvas[static_cast<size_t>(y * kSide + x)];
      value = std::max(value, cover);
    }
  }
}

// The placement of a glyph: box -> pixels.
class Placement {
 public:
  explicit Placement(Draws& draws) {
    // A rotation without sine and cosine: ((1 - t^2), 2t) / (1 + t^2) is a unit vector.
    const double t = draws.between(-kTilt, kTilt);
    cos_ = (1 - t * t) / (1 + t * t);
    sin_ = 2 * t / (1 + t * t);
    shear_ = draws.between(-kShear, kShear);
    height_ = kGlyphHeight * draws.between(0.8, 1.1);
    width_ = height_ * draws.between(0.75, 1.05);
    center_ = {kSide / 2.0 + draws.between(-kShift, kShift),
               kSide / 2.0 + draws.between(-kShift, kShift)};
  }
  Point2 operator()(Point2 p) const {
    const double y = (p.y - 0.5) * height_;
    const double x = (p.x - 0.5) * width_ - shear_ * y;
    return {center_.x + cos_ * x - sin_ * y, center_.y + sin_ * x + cos_ * y};
  }

 private:
  double cos_, sin_, shear_, height_, width_;
  Point2 center_;
};

void draw_glyph(Canvas& canvas, const Glyph& glyph, Draws& draws) {
  const Placement place(draws);
  const double half_width = draws.between(kMinHalfWidth, kMaxHalfWidth);
  const double ink = draws.between(kMinInk, 1.0);
  for (Stroke stroke : glyph.strokes) {
    for (Point2& p : stroke.points) {
      p.x += draws.between(-kPointJitter, kPointJitter);
      p.y += draws.between(-kPointJitter, kPointJitter);
    }
    const std::vector<Point2> flat = flatten_stroke(stroke, kCurveSteps);
    for (size_t i = 1; i < flat.size(); ++i) {
      draw_segment(canvas, place(flat[i - 1]), place(flat[i]), half_width, ink);
    }
  }
}

// A short stray line, as neighbouring writing leaves in a cut-out.
void draw_stray_mark(Canvas& canvas, Draws& draws) {
  const Point2 a = {draws.between(0, kSide), draws.between(0, kSide)};
  const Point2 b = {a.x + draws.between(-5, 5), a.y + draws.between(-5, 5)};
  const double half_width = draws.between(0.4, 1.0);
  draw_segment(canvas, a, b, half_width, draws.between(0.3, 0.9));
}

// Grain: a triangular distribution per pixel, two 16-bit numbers per draw.
void add_noise(Canvas& canvas, Draws& draws) {
  const double amplitude = draws.between(0, kMaxNoise);
  for (double& value : canvas) {
    const uint32_t bits = draws.bits();
    const double grain = static_cast<double>(bits >> 16) - static_cast<double>(bits & 0xffff);
    value += amplitude * (grain / 65536);
  }
}

uint8_t draw_example(uint64_t seed, int64_t example, uint8_t* pixels) {
  Draws draws(seed, example);
  const int digit = draws.below(kClasses);
  const std::span<const Glyph> ways = glyphs_of(digit);
  Canvas canvas{};
  draw_glyph(canvas, ways[static_cast<size_t>(draws.below(static_cast<int>(ways.size())))], draws);
  const int marks = draws.below(3);
  for (int i = 0; i < marks; ++i) draw_stray_mark(canvas, draws);
  add_noise(canvas, draws);
  for (int i = 0; i < kPixels; ++i) {
    const double value = std::clamp(canvas[static_cast<size_t>(i)], 0.0, 1.0);
    pixels[i] = static_cast<uint8_t>(value * 255 + 0.5);
  }
  return static_cast<uint8_t>(digit);
}

std::unique_ptr<DataSet> open_synthetic(std::string_view argument, const DataRequest& request) {
  int64_t count = parse_example_count("synthetic", argument, kDefaultCount, kMinCount, kMaxCount);
  if (request.is_for_shapes) count = kMinCount;
  ImageSetContents contents;
  contents.name = "synthetic";
  contents.image_shape = {1, kSide, kSide};
  contents.class_count = kClasses;
  contents.train_count = split_train_count(count);
  contents.mean = {kMean};
  contents.std = {kStd};
  contents.pixels.resize(static_cast<size_t>(count * kPixels));
  contents.labels.resize(static_cast<size_t>(count));
  parallel_for(count, [&](int64_t i) {
    contents.labels[static_cast<size_t>(i)] =
        draw_example(request.seed, i, contents.pixels.data() + i * kPixels);
  });
  return make_image_set(std::move(contents));
}

}  // namespace

DataSource synthetic_data() {
  return {.kind = "synthetic",
          .argument = "[COUNT]",
          .help = "digits drawn from strokes, no file needed (10000)",
          .tasks = {Task::kImages},
          .open = &open_synthetic};
}

}  // namespace lockstep

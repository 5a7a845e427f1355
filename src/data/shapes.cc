// The synthetic scenes: coloured shapes on a shaded ground, 32x32 pixels, for classification,
// segmentation and detection. Example i is a pure function of (seed, i) and is drawn on demand;
// only
// + - * / and comparisons are used, so every machine draws the same bits.
//
//   classification   one object; class = 2 kind + (striped ? 1 : 0)
//   segmentation     1 to 3 objects; a pixel's class is 1 + the kind of the topmost one, 0: ground
//   detection        1 to 3 objects, targets as anchors.h writes them; class 1 + kind, 0: ground
#include <algorithm>
#include <array>
#include <cmath>

#include "src/core/parallel.h"
#include "src/data/anchors.h"
#include "src/data/draws.h"
#include "src/data/image_set.h"
#include "src/data/sources.h"

namespace lockstep {
namespace {

constexpr int kSide = 32, kChannels = 3;
constexpr int64_t kDefaultCount = 10000, kMinCount = 50, kMaxCount = 100'000'000;
constexpr int kKinds = 5;  // disc, square, triangle, cross, ring
constexpr int kMostObjects = 3;
constexpr double kMinRadius = 4, kMaxRadius = 10;  // pixels
constexpr int kStripe = 2;                         // pixels
constexpr double kGrain = 0.15;                    // amplitude of the noise
// Pixels in 0..1 are returned as (x - mean) / std.
constexpr double kMean = 0.5, kStd = 0.25;

using Colour = std::array<double, kChannels>;

struct Object {
  int kind;
  bool striped;
  double x, y, radius;  // pixels
  Colour colour;
};

bool covers(const Object& o, double x, double y) {
  const double dx = x - o.x, dy = y - o.y, r = o.radius;
  const double ax = std::abs(dx), ay = std::abs(dy);
  switch (o.kind) {
    case 0:
      return dx * dx + dy * dy <= r * r;
    case 1:
      return std::max(ax, ay) <= r;
    case 2:  // point up, as wide as high
      return ay <= r && 2 * ax <= dy + r;
    case 3:
      return std::max(ax, ay) <= r && std::min(ax, ay) <= r / 3;
    default:
      return dx * dx + dy * dy <= r * r && 3 * (dx * dx + dy * dy) >= r * r;
  }
}

struct Scene {
  std::array<Colour, 2> ground;  // left and right edge
  std::vector<Object> objects;   // later ones are on top
};

Colour draw_colour(Draws& draws, double low, double high) {
  Colour colour;
  for (double& part : colour) part = draws.between(low, high);
  return colour;
}

Scene draw_scene(Draws& draws, Task task) {
  Scene scene{{draw_colour(draws, 0.0, 0.5), draw_colour(draws, 0.0, 0.5)}, {}};
  const int count = task == Task::kImages ? 1 : 1 + draws.below(kMostObjects);
  for (int i = 0; i < count; ++i) {
    Object o;
    o.kind = draws.below(kKinds);
    o.striped = draws.below(2) == 1;
    o.radius = draws.between(kMinRadius, kMaxRadius);
    o.x = draws.between(o.radius, kSide - o.radius);
    o.y = draws.between(o.radius, kSide - o.radius);
    o.colour = draw_colour(draws, 0.4, 1.0);
    scene.objects.push_back(o);
  }
  return scene;
}

// The topmost object at a pixel, or -1.
int object_at(const Scene& scene, int row, int col) {
  for (int i = static_cast<int>(scene.objects.size()) - 1; i >= 0; --i) {
    if (covers(scene.objects[static_cast<size_t>(i)], col + 0.5, row + 0.5)) return i;
  }
  return -1;
}

void paint(const Scene& scene, Draws& draws, float* image) {
  for (int row = 0; row < kSide; ++row) {
    for (int col = 0; col < kSide; ++col) {
      const int top = object_at(scene, row, col);
      const double right = (col + 0.5) / kSide;
      for (int c = 0; c < kChannels; ++c) {
        const size_t channel = static_cast<size_t>(c);
        double value = (1 - right) * scene.ground[0][channel] + right * scene.ground[1][channel];
        if (top >= 0) {
          const Object& o = scene.objects[static_cast<size_t>(top)];
          const bool dark = o.striped && (row + col) / kStripe % 2 == 1;
          value = dark ? o.colour[channel] / 3 : o.colour[channel];
        }
        value += draws.between(-kGrain, kGrain);
        image[(c * kSide + row) * kSide + col] =
            static_cast<float>((std::clamp(value, 0.0, 1.0) - kMean) / kStd);
      }
    }
  }
}

class Shapes : public DataSet {
 public:
  Shapes(int64_t count, const DataRequest& request) : count_(count), request_(request) {}

  std::string describe() const override {
    return "shapes: " + std::to_string(train_count()) + " train, " +
           std::to_string(held_out_count()) + " held-out, 3x32x32, " +
           std::string(to_string(request_.task));
  }
  int64_t train_count() const override { return split_train_count(count_); }
  int64_t held_out_count() const override { return count_ - train_count(); }
  Shape image_shape() const override { return {kChannels, kSide, kSide}; }
  int64_t class_count() const override {
    return request_.task == Task::kImages ? 2 * kKinds : 1 + kKinds;
  }

  Batch gather(std::span<const int64_t> indices, uint64_t) const override {
    const int64_t batch = static_cast<int64_t>(indices.size());
    const int64_t labels_each = request_.task == Task::kImages         ? 1
                                : request_.task == Task::kSegmentation ? kSide * kSide
                                                                       : kAnchorCount;
    const Shape label_shape = request_.task == Task::kSegmentation ? Shape{batch, kSide, kSide}
                                                                   : Shape{batch * labels_each};
    Tensor images({batch, kChannels, kSide, kSide}, Container::kF32);
    Tensor labels(label_shape, Container::kI32);
    Tensor boxes, mask;
    if (request_.task == Task::kDetection) {
      boxes = Tensor({batch * kAnchorCount, 4}, Container::kF32);
      mask = Tensor({batch * kAnchorCount, 4}, Container::kF32);
    }
    parallel_for(batch, [&](int64_t i) {
      Draws draws(request_.seed, indices[static_cast<size_t>(i)]);
      const Scene scene = draw_scene(draws, request_.task);
      paint(scene, draws, images.as<float>().data() + i * kChannels * kSide * kSide);
      int32_t* label = labels.as<int32_t>().data() + i * labels_each;
      switch (request_.task) {
        case Task::kSegmentation:
          for (int p = 0; p < kSide * kSide; ++p) {
            const int top = object_at(scene, p / kSide, p % kSide);
            label[p] = top < 0 ? 0 : 1 + scene.objects[static_cast<size_t>(top)].kind;
          }
          break;
        case Task::kDetection:
          write_targets(scene, label, boxes.as<float>().data() + i * kAnchorCount * 4,
                        mask.as<float>().data() + i * kAnchorCount * 4);
          break;
        default:
          label[0] = 2 * scene.objects[0].kind + (scene.objects[0].striped ? 1 : 0);
      }
    });
    Batch result;
    result.emplace("images", std::move(images));
    result.emplace("labels", std::move(labels));
    if (!boxes.empty()) result.emplace("boxes", std::move(boxes));
    if (!mask.empty()) result.emplace("box_mask", std::move(mask));
    return result;
  }

 private:
  static void write_targets(const Scene& scene, int32_t* label, float* box, float* mask) {
    std::vector<Box> boxes;
    std::vector<int32_t> labels;
    for (const Object& o : scene.objects) {
      boxes.push_back({o.x / kSide, o.y / kSide, 2 * o.radius / kSide, 2 * o.radius / kSide});
      labels.push_back(1 + o.kind);
    }
    const AnchorTargets targets = match_anchors(boxes, labels);
    for (size_t a = 0; a < targets.label.size(); ++a) {
      label[a] = targets.label[a];
      for (size_t k = 0; k < 4; ++k) {
        box[4 * a + k] = targets.offset[a][k];
        mask[4 * a + k] = targets.label[a] > 0 ? 1.0f : 0.0f;
      }
    }
  }

  int64_t count_;
  DataRequest request_;
};

std::unique_ptr<DataSet> open_shapes(std::string_view argument, const DataRequest& request) {
  const int64_t count =
      parse_example_count("shapes", argument, kDefaultCount, kMinCount, kMaxCount);
  return std::make_unique<Shapes>(count, request);
}

}  // namespace

DataSource shapes_data() {
  return {.kind = "shapes",
          .argument = "[COUNT]",
          .help = "coloured shapes on 32x32 pixels, no file needed (10000)",
          .tasks = {Task::kImages, Task::kSegmentation, Task::kDetection},
          .open = &open_shapes};
}

}  // namespace lockstep

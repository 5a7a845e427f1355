// grid_sample: an image read at places (x, y) in [-1, 1], or in pixels, between its pixels.
// Operands image (N,C,H,W), grid (N,Ho,Wo,2).
#include <algorithm>
#include <cmath>

#include "src/core/chunks.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

struct Sampling {
  bool nearest = false, align_corners = false, in_pixels = false;
  enum class Padding : uint8_t { kZeros, kBorder, kReflection } padding = Padding::kZeros;
};

Sampling sampling_of(const Node& node) {
  const std::string mode = string_attribute(node, "mode", "bilinear");
  const std::string padding = string_attribute(node, "padding", "zeros");
  require(mode == "bilinear" || mode == "nearest", node,
          "attribute 'mode' is '" + mode + "', must be bilinear or nearest");
  require(padding == "zeros" || padding == "border" || padding == "reflection", node,
          "attribute 'padding' is '" + padding + "', must be zeros, border or reflection");
  Sampling found{.nearest = mode == "nearest",
                 .align_corners = bool_attribute(node, "align_corners", false),
                 .in_pixels = bool_attribute(node, "in_pixels", false)};
  if (padding == "border") found.padding = Sampling::Padding::kBorder;
  if (padding == "reflection") found.padding = Sampling::Padding::kReflection;
  return found;
}

// A place along one dimension in pixels, and its derivative by the grid's number.
template <typename T>
struct Place {
  T at, slope;
};

// |x - low| folded into [0, span], and the sign of its slope.
template <typename T>
Place<T> reflected(T x, T low, T span, T slope) {
  if (span == 0) return {0, 0};
  T from = x - low;
  if (from < 0) {
    from = -from;
    slope = -slope;
  }
  const T turns = std::floor(from / span), rest = from - turns * span;
  const bool back = std::fmod(turns, T(2)) != 0;
  return {back ? span - rest + low : rest + low, back ? -slope : slope};
}

template <typename T>
Place<T> place_of(T number, int64_t extent, const Sampling& sampling) {
  const T size = static_cast<T>(extent);
  Place<T> place = sampling.align_corners ? Place<T>{(number + 1) / 2 * (size - 1), (size - 1) / 2}
                                          : Place<T>{((number + 1) * size - 1) / 2, size / 2};
  if (sampling.in_pixels) place = {number, 1};
  if (sampling.padding == Sampling::Padding::kZeros) return place;
  if (sampling.padding == Sampling::Padding::kReflection) {
    place = sampling.align_corners ? reflected(place.at, T(0), size - 1, place.slope)
                                   : reflected(place.at, T(-0.5), size, place.slope);
  }
  if (!(place.at > 0)) return {0, 0};
  if (place.at >= size - 1) return {size - 1, 0};
  return place;
}

// A pixel that a place reads: its offset in the plane, or -1 outside; its weight, and the weight's
// derivatives by the place.
template <typename T>
struct Corner {
  int64_t offset;
  T weight, by_x, by_y;
};

template <typename T>
int corners_of(Place<T> x, Place<T> y, int64_t height, int64_t width, bool nearest,
               Corner<T> (&corners)[4]) {
  const auto offset = [&](T column, T row) {
    const bool inside =
        column >= 0 && row >= 0 && column < static_cast<T>(width) && row < static_cast<T>(height);
    return inside ? static_cast<int64_t>(row) * width + static_cast<int64_t>(column) : -1;
  };
  if (nearest) {
    corners[0] = {offset(std::nearbyint(x.at), std::nearbyint(y.at)), 1, 0, 0};
    return 1;
  }
  const T left = std::floor(x.at), top = std::floor(y.at);
  const T east = x.at - left, west = left + 1 - x.at;
  const T south = y.at - top, north = top + 1 - y.at;
  corners[0] = {offset(left, top), west * north, -north, -west};
  corners[1] = {offset(left + 1, top), east * north, north, -east};
  corners[2] = {offset(left, top + 1), west * south, -south, west};
  corners[3] = {offset(left + 1, top + 1), east * south, south, east};
  return 4;
}

std::vector<TensorType> infer_forward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape &image = inputs[0].shape, &grid = inputs[1].shape;
  require_image(node, image);
  require(grid.size() == 4 && grid[0] == image[0] && grid[3] == 2, node,
          "the grid is " + to_string(grid) + ", must be (N,Ho,Wo,2) with the image's N");
  sampling_of(node);
  return {{{image[0], image[1], grid[1], grid[2]}}};
}

void vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "grid_sample_backward",
                   {node.inputs[0], node.inputs[1], builder.output_gradient(node)}, node.attributes,
                   {0, 1});
}

// Calls body(sample, place in the grid, corners, their count, x, y) for the places of one sample.
template <typename T, typename Body>
void for_each_place(const OpCall& call, int64_t sample, Body body) {
  const Sampling sampling = sampling_of(call.node);
  const Shape &image = input_shape(call, 0), &grid = input_shape(call, 1);
  const int64_t count = grid[1] * grid[2];
  const T* numbers = input<T>(call, 1) + sample * count * 2;
  for (int64_t i = 0; i < count; ++i) {
    const Place<T> x = place_of(numbers[2 * i], image[3], sampling);
    const Place<T> y = place_of(numbers[2 * i + 1], image[2], sampling);
    Corner<T> corners[4];
    const int used = corners_of(x, y, image[2], image[3], sampling.nearest, corners);
    body(i, std::span<const Corner<T>>(corners, static_cast<size_t>(used)), x, y);
  }
}

void run_forward(const OpCall& call) {
  const Shape &image = input_shape(call, 0), &grid = input_shape(call, 1);
  const int64_t plane = image[2] * image[3], count = grid[1] * grid[2], channels = image[1];
  dispatch(call, [&]<typename T>(T*) {
    parallel_chunks(image[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* pixels = input<T>(call, 0) + n * channels * plane;
        T* y = output<T>(call, 0) + n * channels * count;
        for_each_place<T>(call, n, [&](int64_t i, auto corners, auto, auto) {
          for (int64_t c = 0; c < channels; ++c) {
            T sum = 0;
            for (const Corner<T>& corner : corners) {
              if (corner.offset >= 0) sum += pixels[c * plane + corner.offset] * corner.weight;
            }
            y[c * count + i] = sum;
          }
        });
      }
    });
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const Shape y = infer_forward(node, inputs.first(2))[0].shape;
  require_float(node, inputs, 2);
  require_shape(node, inputs, 2, y, "the shape of y");
  return {{inputs[0].shape}, {inputs[1].shape}};
}

void run_backward(const OpCall& call) {
  const Shape &image = input_shape(call, 0), &grid = input_shape(call, 1);
  const int64_t plane = image[2] * image[3], count = grid[1] * grid[2], channels = image[1];
  call.outputs[0]->fill_zero();
  dispatch(call, [&]<typename T>(T*) {
    parallel_chunks(image[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* pixels = input<T>(call, 0) + n * channels * plane;
        const T* dy = input<T>(call, 2) + n * channels * count;
        T* dx = output<T>(call, 0) + n * channels * plane;
        T* dgrid = output<T>(call, 1) + n * count * 2;
        for_each_place<T>(call, n, [&](int64_t i, auto corners, Place<T> x, Place<T> y) {
          T by_x = 0, by_y = 0;
          for (int64_t c = 0; c < channels; ++c) {
            const T slope = dy[c * count + i];
            for (const Corner<T>& corner : corners) {
              if (corner.offset < 0) continue;
              const T pixel = pixels[c * plane + corner.offset];
              dx[c * plane + corner.offset] += slope * corner.weight;
              by_x += pixel * corner.by_x * slope;
              by_y += pixel * corner.by_y * slope;
            }
          }
          dgrid[2 * i] = by_x * x.slope;
          dgrid[2 * i + 1] = by_y * y.slope;
        });
      }
    });
  });
}

}  // namespace

std::vector<OpDef> grid_sample_ops() {
  return {
      {.name = "grid_sample",
       .help =
           "y[n,c,i,j] = image[n,c] at the place grid[n,i,j] = (x, y), -1 and 1 its borders, or "
           "with align_corners the centres of its outer pixels; in_pixels: 0 is the centre of the "
           "first pixel, 1 that of the second; mode bilinear or nearest; "
           "outside by padding: zeros, border, reflection; operands image (N,C,H,W), grid "
           "(N,Ho,Wo,2)",
       .source = "torch.nn.functional.grid_sample; CUDA autocast: promote",
       .cast_class = CastClass::kPromote,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"mode", "padding", "align_corners", "in_pixels"},
       .infer = infer_forward,
       .vjp = vjp,
       .run = run_forward,
       .foreign_names = {.torch = "grid_sampler"}},
      {.name = "grid_sample_backward",
       .help = "dimage, dgrid; operands image, grid, dy",
       .source = "chain rule; the grid gets no gradient where the mode is nearest, nor where the "
                 "padding moves a place to the border",
       .cast_class = CastClass::kPromote,
       .min_inputs = 3,
       .max_inputs = 3,
       .attributes = {"mode", "padding", "align_corners", "in_pixels"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep

// roi_align: means of an image's values in a grid of bins over each box. Operands images (N,C,H,W),
// boxes (K,5): number of the image, x1, y1, x2, y2; result (K,C,P,Q).
#include <algorithm>
#include <cmath>
#include <limits>

#include "src/core/chunks.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

constexpr size_t kBoxNumbers = 5;
// Places along one side of a box, in all of its bins. A longer box has lost its meaning, as one
// that is not finite.
constexpr int64_t kMostPlaces = 1 << 14;

struct Regions {
  std::vector<int64_t> size;  // bins along y and x
  double scale = 1;           // pixels per unit of the boxes
  int64_t sampling = 0;       // places per bin and side; 0: as many as pixels
  bool aligned = false;
};

Regions regions_of(const Node& node) {
  Regions found{.size = ints_attribute(node, "size", {}),
                .scale = double_attribute(node, "scale", 1),
                .sampling = std::max<int64_t>(int_attribute(node, "sampling", 0), 0),
                .aligned = bool_attribute(node, "aligned", false)};
  require(found.size.size() == 2 && found.size[0] > 0 && found.size[1] > 0, node,
          "attribute 'size' must be the bins' rows and columns, at least 1");
  for (const int64_t bins : found.size) {
    require(bins <= kMostPlaces && found.sampling <= kMostPlaces / bins, node,
            "attributes 'size' and 'sampling' give more than " + std::to_string(kMostPlaces) +
                " places along a side");
  }
  return found;
}

// A place between two rows or columns of pixels. Outside of the image both weights are 0.
template <typename T>
struct Place {
  int64_t low = 0, high = 0;
  T low_weight = 0, high_weight = 0;
  bool inside = false;
};

template <typename T>
Place<T> place_at(T at, int64_t extent) {
  if (!(at >= -1 && at <= static_cast<T>(extent))) return {};
  at = std::max(at, T(0));
  const auto low = static_cast<int64_t>(at);
  if (low >= extent - 1) return {extent - 1, extent - 1, 1, 0, true};
  const T rest = at - static_cast<T>(low);
  return {low, low + 1, 1 - rest, rest, true};
}

// The places of one side of a box, bin after bin. valid: the side is finite and not absurdly long.
template <typename T>
struct Side {
  std::vector<Place<T>> places;
  int64_t per_bin = 0;
  bool valid = false;
};

template <typename T>
Side<T> side_of(T from, T to, int64_t bins, int64_t extent, const Regions& regions) {
  const T offset = regions.aligned ? T(0.5) : T(0), scale = static_cast<T>(regions.scale);
  const T start = from * scale - offset, end = to * scale - offset;
  const T length = regions.aligned ? end - start : std::max(end - start, T(1));
  const T bin = length / static_cast<T>(bins);
  Side<T> side;
  side.valid = std::isfinite(start) && std::isfinite(end) &&
               std::ceil(bin) * static_cast<T>(bins) <= static_cast<T>(kMostPlaces);
  if (!side.valid) return side;
  side.per_bin = regions.sampling > 0 ? regions.sampling
                                      : static_cast<int64_t>(std::ceil(std::max(bin, T(0))));
  for (int64_t i = 0; i < bins; ++i) {
    for (int64_t k = 0; k < side.per_bin; ++k) {
      const T within = (static_cast<T>(k) + T(0.5)) * bin / static_cast<T>(side.per_bin);
      side.places.push_back(place_at(start + static_cast<T>(i) * bin + within, extent));
    }
  }
  return side;
}

// A box: the image it is in, -1 for none, and its places.
template <typename T>
struct Box {
  int64_t image = -1;
  Side<T> rows, columns;
  T count = 1;
};

template <typename T>
std::vector<Box<T>> boxes_of(const OpCall& call) {
  const Regions regions = regions_of(call.node);
  const Shape &images = input_shape(call, 0), &boxes = input_shape(call, 1);
  std::vector<Box<T>> found(static_cast<size_t>(boxes[0]));
  for (size_t k = 0; k < found.size(); ++k) {
    const T* numbers = input<T>(call, 1) + k * kBoxNumbers;
    Box<T>& box = found[k];
    if (!(numbers[0] > -1 && numbers[0] < static_cast<T>(images[0]))) continue;
    box.columns = side_of(numbers[1], numbers[3], regions.size[1], images[3], regions);
    box.rows = side_of(numbers[2], numbers[4], regions.size[0], images[2], regions);
    if (!box.rows.valid || !box.columns.valid) continue;
    box.image = static_cast<int64_t>(numbers[0]);
    box.count = static_cast<T>(std::max<int64_t>(box.rows.per_bin * box.columns.per_bin, 1));
  }
  return found;
}

// Calls body(row, column) for the places of a bin.
template <typename T, typename Body>
void for_each_place(const Box<T>& box, int64_t i, int64_t j, Body body) {
  const Place<T>*const rows = box.rows.places.data() + i * box.rows.per_bin,
                       *const columns = box.columns.places.data() + j * box.columns.per_bin;
  for (int64_t a = 0; a < box.rows.per_bin; ++a) {
    for (int64_t b = 0; b < box.columns.per_bin; ++b) body(rows[a], columns[b]);
  }
}

std::vector<TensorType> infer_forward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape &images = inputs[0].shape, &boxes = inputs[1].shape;
  require_image(node, images);
  require(boxes.size() == 2 && boxes[1] == static_cast<int64_t>(kBoxNumbers), node,
          "the boxes are " + to_string(boxes) + ", must be (K,5)");
  const Regions regions = regions_of(node);
  return {{{boxes[0], images[1], regions.size[0], regions.size[1]}}};
}

void vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "roi_align_backward",
                   {node.inputs[0], node.inputs[1], builder.output_gradient(node)}, node.attributes,
                   {0});
}

void run_forward(const OpCall& call) {
  const Shape &images = input_shape(call, 0), &out = call.outputs[0]->shape();
  const int64_t width = images[3], plane = images[2] * width, channels = images[1];
  dispatch(call, [&]<typename T>(T*) {
    const std::vector<Box<T>> boxes = boxes_of<T>(call);
    parallel_chunks(out[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const Box<T>& box = boxes[static_cast<size_t>(k)];
        T* y = output<T>(call, 0) + k * channels * out[2] * out[3];
        for (int64_t c = 0; c < channels; ++c) {
          const T* pixels = input<T>(call, 0) + (box.image * channels + c) * plane;
          for (int64_t i = 0; i < out[2]; ++i) {
            for (int64_t j = 0; j < out[3]; ++j, ++y) {
              T sum = 0;
              for_each_place(box, i, j, [&](const Place<T>& row, const Place<T>& column) {
                const T *low = pixels + row.low * width, *high = pixels + row.high * width;
                sum += row.low_weight * column.low_weight * low[column.low] +
                       row.low_weight * column.high_weight * low[column.high] +
                       row.high_weight * column.low_weight * high[column.low] +
                       row.high_weight * column.high_weight * high[column.high];
              });
              *y = box.image < 0 ? std::numeric_limits<T>::quiet_NaN() : sum / box.count;
            }
          }
        }
      }
    });
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const Shape y = infer_forward(node, inputs.first(2))[0].shape;
  require_float(node, inputs, 2);
  require_shape(node, inputs, 2, y, "the shape of y");
  return {{inputs[0].shape}};
}

void run_backward(const OpCall& call) {
  const Shape &images = input_shape(call, 0), &out = input_shape(call, 2);
  const int64_t width = images[3], plane = images[2] * width, channels = images[1];
  const int64_t bins = out[2] * out[3];
  call.outputs[0]->fill_zero();
  dispatch(call, [&]<typename T>(T*) {
    const std::vector<Box<T>> boxes = boxes_of<T>(call);
    parallel_chunks(channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = 0; k < out[0]; ++k) {
        const Box<T>& box = boxes[static_cast<size_t>(k)];
        if (box.image < 0) continue;
        for (int64_t c = begin; c < end; ++c) {
          const T* dy = input<T>(call, 2) + (k * channels + c) * bins;
          T* dx = output<T>(call, 0) + (box.image * channels + c) * plane;
          for (int64_t bin = 0; bin < bins; ++bin) {
            const T slope = dy[bin];
            for_each_place(box, bin / out[3], bin % out[3],
                           [&](const Place<T>& row, const Place<T>& column) {
                             if (!row.inside || !column.inside) return;
                             T *low = dx + row.low * width, *high = dx + row.high * width;
                             const auto share = [&](T down, T across) {
                               return slope * (down * across) / box.count;
                             };
                             low[column.low] += share(row.low_weight, column.low_weight);
                             low[column.high] += share(row.low_weight, column.high_weight);
                             high[column.low] += share(row.high_weight, column.low_weight);
                             high[column.high] += share(row.high_weight, column.high_weight);
                           });
          }
        }
      }
    });
  });
}

}  // namespace

std::vector<OpDef> roi_align_ops() {
  return {
      {.name = "roi_align",
       .help =
           "y[k,c,i,j] = mean of image[n,c] at sampling x sampling places in bin (i,j) of box k "
           "= (n, x1, y1, x2, y2), read between the pixels, 0 more than a pixel outside; size: "
           "rows and columns of bins; scale: pixels per unit of the boxes; sampling 0: one place "
           "per pixel; aligned: half a pixel less; operands images (N,C,H,W), boxes (K,5), y "
           "(K,C,P,Q); NaN for boxes that are not finite",
       .source =
           "K. He et al., Mask R-CNN, ICCV 2017; torchvision.ops.roi_align; autocast: computed "
           "in FP32, output in the type of the images",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"size", "scale", "sampling", "aligned"},
       .infer = infer_forward,
       .vjp = vjp,
       .run = run_forward,
       .formats = {.follow_operands = {0}}},
      {.name = "roi_align_backward",
       .help = "dx; operands images, boxes, dy",
       .source = "chain rule of roi_align; the boxes get no gradient, as in torchvision",
       .min_inputs = 3,
       .max_inputs = 3,
       .attributes = {"size", "scale", "sampling", "aligned"},
       .infer = infer_backward,
       .run = run_backward,
       .formats = {.follow_operands = {0}}},
  };
}

}  // namespace lockstep

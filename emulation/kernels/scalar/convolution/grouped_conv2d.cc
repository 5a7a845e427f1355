// One call per group. Few groups run one after the other, each on all threads; many groups run in
// parallel, each on one thread. The bits are the same.
#include "emulation/kernels/scalar/convolution/grouped_conv2d.h"

#include <vector>

#include "emulation/kernels/scalar/elements/strided_copy.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

template <typename T>
void run_pass(const Kernels<T>& kernels, ConvPass pass, const ConvArgs<T>& args) {
  switch (pass) {
    case ConvPass::kForward:
      return kernels.conv2d_forward(args);
    case ConvPass::kBackwardInput:
      return kernels.conv2d_backward_input(args);
    case ConvPass::kBackwardWeight:
      return kernels.conv2d_backward_weight(args);
  }
}

// (A, B, inner) -> (B, A, inner)
template <typename T>
void swap_outer(int64_t a, int64_t b, int64_t inner, const T* x, T* y) {
  strided_copy<T>({{b, inner, a * inner}, {a, b * inner, inner}, {inner, 1, 1}}, x, y);
}

}  // namespace

template <typename T>
void grouped_conv2d(const Kernels<T>& kernels, ConvPass pass, const ConvArgs<T>& args,
                    int64_t groups) {
  if (groups == 1) return run_pass(kernels, pass, args);
  const ConvShape& whole = args.shape;
  ConvShape part = whole;
  part.in_channels /= groups;
  part.out_channels /= groups;
  const int64_t x_image = part.in_channels * whole.in_height * whole.in_width;
  const int64_t y_image = part.out_channels * whole.out_height * whole.out_width;
  const int64_t x_group = whole.batch * x_image, y_group = whole.batch * y_image;
  const int64_t w_group =
      part.out_channels * part.in_channels * whole.kernel_height * whole.kernel_width;
  const auto by_group = [&](const T* images, int64_t image, std::vector<T>& storage) -> const T* {
    if (images == nullptr) return nullptr;
    storage.resize(static_cast<size_t>(groups * whole.batch * image));
    swap_outer(whole.batch, groups, image, images, storage.data());
    return storage.data();
  };
  std::vector<T> x_storage, dy_storage, out_storage;
  const T* x = by_group(args.x, x_image, x_storage);
  const T* dy = by_group(args.dy, y_image, dy_storage);
  const bool gives_weights = pass == ConvPass::kBackwardWeight;
  const int64_t out_image = pass == ConvPass::kForward ? y_image : x_image;
  const int64_t out_group = gives_weights ? w_group : whole.batch * out_image;
  // Events are OR-ed; those of images only after the images are back in their order.
  std::vector<uint8_t> events;
  if (!gives_weights) out_storage.resize(static_cast<size_t>(groups * out_group));
  if (!gives_weights && args.events != nullptr) events.resize(out_storage.size());
  T* out = gives_weights ? args.out : out_storage.data();
  uint8_t* out_events = events.empty() ? args.events : events.data();

  const auto run_group = [&](int64_t g) {
    ConvArgs<T> one = args;
    one.shape = part;
    if (x != nullptr) one.x = x + g * x_group;
    if (dy != nullptr) one.dy = dy + g * y_group;
    if (args.w != nullptr) one.w = args.w + g * w_group;
    one.out = out + g * out_group;
    if (out_events != nullptr) one.events = out_events + g * out_group;
    run_pass(kernels, pass, one);
  };
  if (groups < 2 * thread_count()) {
    for (int64_t g = 0; g < groups; ++g) run_group(g);
  } else {
    parallel_for(groups, run_group);
  }
  if (gives_weights) return;
  swap_outer(groups, whole.batch, out_image, out_storage.data(), args.out);
  for (int64_t g = 0; !events.empty() && g < groups; ++g) {
    for (int64_t n = 0; n < whole.batch; ++n) {
      const uint8_t* from = events.data() + (g * whole.batch + n) * out_image;
      uint8_t* to = args.events + (n * groups + g) * out_image;
      for (int64_t i = 0; i < out_image; ++i) to[i] |= from[i];
    }
  }
}

template void grouped_conv2d(const Kernels<float>&, ConvPass, const ConvArgs<float>&, int64_t);
template void grouped_conv2d(const Kernels<double>&, ConvPass, const ConvArgs<double>&, int64_t);

}  // namespace lockstep

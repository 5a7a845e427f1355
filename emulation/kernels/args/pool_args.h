// The windows of an image that are pooled.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

// Windows of 2-d pooling. pad_h, pad_w: above and left. The padding below and on the right follows
// from the output's extents.
struct PoolShape {
  int64_t batch, channels, in_height, in_width, out_height, out_width;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h = 0, pad_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
};

// Windows of average pooling. Each is an interval of rows times an interval of columns, so that one
// kernel does fixed and adaptive pooling.
struct AxisWindow {
  int64_t begin, end;  // inside the image; empty where begin >= end, which counts as 0
  int64_t extent;      // counted in the divisor along this axis
};
struct AvgPool {
  int64_t planes, height, width;
  std::vector<AxisWindow> rows, columns;
  int64_t divisor = 0;  // 0: the product of the extents
};

}  // namespace lockstep
